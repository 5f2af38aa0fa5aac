"""What code for arrays of numpy and tensors of torch needs of both.

A network computes in torch, or in native code on numpy's arrays. What runs networks of either kind keeps to indices,
operators and these functions. It does not import torch: a process whose networks are native does without it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Numbers = Any
"""An array of numpy, or a tensor of torch."""

F = TypeVar("F", bound=Callable[..., Any])


def namespace(like: Numbers) -> Any:
    """numpy, or torch; their functions `stack`, `where` and `broadcast_to` take the same arguments."""
    if isinstance(like, np.ndarray):
        return np
    import torch

    return torch


def on_gpu(x: Numbers) -> bool:
    return not isinstance(x, np.ndarray) and bool(x.is_cuda)


def zeros(shape: Sequence[int], like: Numbers, dtype: DTypeLike | None = None) -> Numbers:
    """Zeros of the kind and on the device of `like`, of a dtype of numpy; None: of its dtype."""
    if isinstance(like, np.ndarray):
        return np.zeros(shape, like.dtype if dtype is None else dtype)
    import torch

    kind = like.dtype if dtype is None else getattr(torch, np.dtype(dtype).name)
    return torch.zeros(*shape, dtype=kind, device=like.device)


def cast(x: Numbers, dtype: DTypeLike) -> Numbers:
    """x in a dtype of numpy; x itself if it has it."""
    if isinstance(x, np.ndarray):
        return x.astype(dtype, copy=False)
    import torch

    return x.to(getattr(torch, np.dtype(dtype).name))


def in_float32(x: Numbers) -> Numbers:
    """x in float32; uint16 of numpy are the bits of bf16."""
    if not isinstance(x, np.ndarray):
        return x.float()
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x.astype(np.float32, copy=False)


def in_dtype_of(like: Numbers, x: Numbers) -> Numbers:
    """x, of the same kind as `like`, in its dtype."""
    return x.astype(like.dtype, copy=False) if isinstance(x, np.ndarray) else x.to(like.dtype)


def as_tensor(x: Numbers) -> Any:
    """x as a tensor in the same memory, where it is an array, in which uint16 are the bits of bf16."""
    if not isinstance(x, np.ndarray):
        return x
    import torch

    tensor = torch.from_numpy(x)
    return tensor.view(torch.bfloat16) if x.dtype == np.uint16 else tensor


def joined(parts: Sequence[Numbers]) -> Numbers:
    """One behind the other, along the first dimension."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(list(parts))


def copied(x: Numbers) -> Numbers:
    return x.copy() if isinstance(x, np.ndarray) else x.clone()


def kept(x: Numbers) -> Numbers:
    """A copy in the host's memory."""
    return x.copy() if isinstance(x, np.ndarray) else x.detach().to("cpu", copy=True)


def put(x: Numbers, value: Numbers) -> None:
    """Write what was `kept` back into x."""
    if isinstance(x, np.ndarray):
        x[...] = value
    else:
        x.copy_(value)


def fill(x: Numbers, value: float, where: Numbers | None = None) -> None:
    """Write one number everywhere, or where a mask is true. Assigned to an index, torch would first make a tensor of
    it.
    """
    if isinstance(x, np.ndarray):
        x[... if where is None else where] = value
    elif where is None:
        x.fill_(value)
    else:
        x.masked_fill_(where, value)


def places_of(mask: Numbers) -> Numbers:
    """bool [B] -> int64 [n], where it is true."""
    return mask.nonzero()[0] if isinstance(mask, np.ndarray) else mask.nonzero()[:, 0]


def array_of(x: Numbers) -> NDArray[Any]:
    """The array itself, or that of a tensor of the host, in the same memory."""
    return x if isinstance(x, np.ndarray) else x.detach().numpy()


def in_kind_of(like: Numbers, array: NDArray[Any]) -> Numbers:
    """An array, or a tensor of the same numbers on the device of `like`."""
    if isinstance(like, np.ndarray):
        return array
    import torch

    return torch.from_numpy(array).to(like.device)


def on_host(x: Numbers) -> NDArray[Any]:
    """An array in the host's memory; of a tensor on a GPU, a copy."""
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()


def without_gradients(function: F) -> F:
    """Run a function in torch's inference mode, if torch is imported."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            return function(*args, **options)
        with torch.inference_mode():
            return function(*args, **options)

    return run  # type: ignore[return-value]
