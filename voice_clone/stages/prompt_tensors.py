"""The tensors of a talker's prompt: each field of a family's dataclass says what it may hold. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from voice_clone.errors import InvalidArgument
from voice_clone.stages.text import check_range

_NAMES = {"int16": "INT16", "int32": "INT32", "uint16": "UINT16", "float32": "FP32"}

Limits = Callable[[Any], int | Sequence[int]]
"""The checkpoint's configuration -> what the numbers lie below: one limit, or one for each column."""


@dataclass(frozen=True)
class _Form:
    kind: np.dtype[Any]
    sizes: tuple[int | None, ...]
    least: int
    below: Limits | int | None

    def check(self, name: str, array: NDArray[Any]) -> None:
        right = array.dtype == self.kind and array.ndim == len(self.sizes) and len(array) >= self.least
        right = right and all(size in (None, found) for size, found in zip(self.sizes, array.shape, strict=True))
        fixed = self.below if isinstance(self.below, int) else None
        if not right or (fixed is not None and not ((array >= 0) & (array < fixed)).all()):
            limit = "" if fixed is None else f" and lie in 0..{fixed - 1}"
            raise InvalidArgument(f"{name} must be {self._described()}{limit}")
        if self.kind.kind == "f" and not np.isfinite(array).all():
            raise InvalidArgument(f"{name} must be finite")

    def check_values(self, name: str, array: NDArray[Any], config: Any) -> None:
        if not callable(self.below) or not array.size:
            return
        limits = self.below(config)
        if isinstance(limits, int):
            check_range(name, array, limits)
        elif array.shape[1] != len(limits):
            raise InvalidArgument(f"{name} has {array.shape[1]} codebooks; expected {len(limits)}")
        elif (array >= np.array(limits)).any():
            raise InvalidArgument(f"{name} must lie in 0..{min(limits) - 1} or more, by codebook")

    def _described(self) -> str:
        count = len(self.sizes)
        shape = f"[{', '.join('n' if size is None else str(size) for size in self.sizes)}]"
        if not any(self.sizes):
            shape = f"of {count} dimension{'s' if count > 1 else ''}"
        return f"{_NAMES[self.kind.name]} {shape}{' and not empty' if self.least else ''}"


def tensor(
    kind: DTypeLike, *sizes: int | None, least: int = 0, below: Limits | int | None = None
) -> Mapping[str, _Form]:
    """Metadata of a field.

    Args:
        kind: numpy's type.
        sizes: of each dimension; None: any.
        least: of the first dimension.
        below: numbers lie in 0..below - 1; None: any. Those that floats hold are finite.
    """
    return {"form": _Form(np.dtype(kind), sizes, least, below)}


def tokens(below: Limits | int | None = None) -> Mapping[str, _Form]:
    """Metadata of a field of tokens, int32 [n], n > 0; arguments as of `tensor`."""
    return tensor(np.int32, None, least=1, below=below)


class PromptTensors:
    """The base of such a dataclass.

    Raises:
        InvalidArgument: on construction, if a type, a shape or a number is wrong.
    """

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            each.metadata["form"].check(each.name, getattr(self, each.name))

    def check(self, config: Any) -> None:
        """Check all numbers against the checkpoint's configuration.

        Raises:
            InvalidArgument: one is none of the checkpoint's.
        """
        for each in fields(self):  # type: ignore[arg-type]
            each.metadata["form"].check_values(each.name, getattr(self, each.name), config)
