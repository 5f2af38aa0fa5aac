"""What talkers share whose whole prompt is known at its start, in torch and in native code."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, joined, without_gradients, zeros
from voice_clone.autoregressive.talker import TalkerInput
from voice_clone.native.matrix.weights import as_float32

P = TypeVar("P")


class WholePrompts(Generic[P]):
    """The base of a `voice_clone.autoregressive.talker.Talker`. P: a prompt with a method `check(config)`.

    Attributes:
        config: of the checkpoint.
        stack: of torch, or native.
    """

    config: Any
    stack: Any
    min_frames = 0

    def check(self, prompt: P) -> None:
        prompt.check(self.config)  # type: ignore[attr-defined]

    @without_gradients
    def embed_prompt(self, prompt: P) -> TalkerInput:
        embeds = joined([*self.prompt_rows(prompt)])
        return TalkerInput(embeds, embeds[:0], zeros(embeds.shape[1:], embeds))

    @abstractmethod
    def prompt_rows(self, prompt: P) -> Sequence[Numbers]:
        """The rows of a prompt's parts, [n, I] each, in their order."""

    def rows_of(self, table: Numbers, ids: npt.NDArray[Any]) -> Numbers:
        """Rows of a table that may stay in the file."""
        if isinstance(table, np.ndarray):
            return as_float32(table[ids])
        from voice_clone.layers.graphs import table_rows

        return table_rows(table, ids, self.stack.like)

    def embed(self, table: Numbers, ids: Numbers) -> Numbers:
        """Rows of a table on the device, of ids int64 [N] there."""
        if isinstance(table, np.ndarray):
            return as_float32(table[ids])
        from torch.nn import functional as F

        return F.embedding(ids, table).to(self.stack.like.dtype)

    def numbers(self, array: npt.NDArray[Any]) -> Numbers:
        """Numbers of a prompt as the talker takes them."""
        if isinstance(self.stack.like, np.ndarray):
            return array
        import torch

        from voice_clone.layers.graphs import to_device

        return to_device(torch.from_numpy(array), self.stack.like.device)
