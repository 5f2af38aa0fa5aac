"""A CUDA device that is none: tensors that say they are on a GPU, and compute on the CPU.

Code runs on it as on a GPU, by the same branches and with right values, where torch has no CUDA. What a GPU would
refuse raises `MixedDevices`: an operator with tensors of both devices. A dimensionless tensor of the CPU may join, as
it may on a GPU. Reading a value (`item`, `tolist`, `.cpu()`) works and is counted, since it waits for a GPU. A copy to
pinned memory without a wait comes late: whoever reads or reuses that memory before gets wrong values. A copy
to the device comes at once.

The tensors are of torch's backend for devices that are written in Python; `.device` says `cuda:0` all the same. Where
torch has CUDA there is no such device: a process with both pins no memory for the real one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import SkipTest
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

CUDA = torch.device("cuda", 0)  # what the tensors say
REAL = torch.cuda.is_available()
if not REAL:
    _setup_privateuseone_for_python_backend("pretend")
PRETEND = CUDA if REAL else torch.device("pretend", 0)  # what torch knows them as
MEMORY = 80 * 10**9  # bytes, all of them free
CPU, META = torch.device("cpu"), torch.device("meta")

aten = torch.ops.aten
# `to` is a composite operator: what it is made of is a copy, or nothing.
COPIES = (aten._to_copy.default, aten.copy_.default)  # from one device to another
READS = (aten._local_scalar_dense.default, aten.item.default)
PINS = (aten.pin_memory.default, aten._pin_memory.default)
# Composite operators that a GPU runs as one kernel: not taken apart.
WHOLE = (
    aten.linear.default,
    aten.matmul.default,
    aten.scaled_dot_product_attention.default,
    aten.conv1d.default,
    aten.conv_transpose1d.default,
    aten.rms_norm.default,
    aten.layer_norm.default,
)

ATTENTION = aten.scaled_dot_product_attention.default
FLASH = aten._flash_attention_forward.default

Observer = Callable[[Any, Sequence[torch.Tensor], Sequence[torch.Tensor]], None]
"""(operator, its tensors, its results) of each kernel."""


class RealGPU(SkipTest):
    """This machine has a GPU, so none is pretended; pytest takes it as the reason to skip a test."""


class MixedDevices(RuntimeError):
    """An operator got tensors of the CPU and of the GPU."""


class PretendTensor(torch.Tensor):
    """A tensor on `CUDA`. Attribute `inner`: its values, on the CPU, or its shape alone, on the meta device."""

    inner: torch.Tensor  # type: ignore[assignment]
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> PretendTensor:
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=PRETEND,
        )
        made.inner = inner
        return made

    def __repr__(self, *args: Any, **kwargs: Any) -> str:  # type: ignore[override]
        return f"PretendTensor({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(f"{func}: a thread without a PretendGPU")


class PretendGPU(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, this thread has a GPU.

    Args:
        empty: tensors have shapes and no values, so that large networks take no memory. Composite operators are then
            taken apart, and `launches` are kernels.
        observer: called for each kernel.

    Attributes:
        launches: how often each operator ran that starts a kernel; views are none.
        waits: how often a value was read, or a tensor copied to the CPU.
        blocking: how often a copy from the CPU made the host wait: `non_blocking`, pinned memory and the same
            dtype prevent that.
        late: copies to pinned memory that were not waited for: where to, and the values.
        begun: how many such copies there were, the late ones included.
    """

    def __init__(self, empty: bool = False, observer: Observer | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._empty = empty
        self._observer = observer
        self.launches: Counter[str] = Counter()
        self.waits = self.blocking = self.begun = 0
        self.late: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        self._pinned: dict[int, torch.Tensor] = {}  # by address; kept, so that no address comes again

    def land(self, count: int | None = None) -> None:
        """Finish the first so many of all late copies; None: all."""
        left = 0 if count is None else max(0, self.begun - count)
        with torch.inference_mode():
            while len(self.late) > left:
                host, values = self.late.popleft()
                host.copy_(values)

    def __enter__(self) -> PretendGPU:
        self._lifts = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(...) is then copied here
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch._C._set_only_lift_cpu_tensors(self._lifts)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket is aten.to or (self._empty and func not in WHOLE):
            with self:  # for the parts
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        taken: list[torch.Tensor] = []
        inner_args = [_unwrapped(each, taken) for each in args]
        inner_kwargs = {name: _unwrapped(each, taken) for name, each in kwargs.items() if name != "non_blocking"}
        ours = [each for each in taken if isinstance(each, PretendTensor)]
        strangers = [each for each in taken if not isinstance(each, PretendTensor) and each.dim()]
        if ours and strangers and func not in COPIES:
            raise MixedDevices(f"{func} of {[(str(each.device), tuple(each.shape)) for each in taken]}")
        if func is aten.copy_.default:
            on_gpu = isinstance(args[0], PretendTensor)
        else:
            on_gpu = torch.device(kwargs["device"]) == PRETEND if kwargs.get("device") else bool(ours)
        if kwargs.get("device") and on_gpu:
            inner_kwargs["device"] = META if self._empty else CPU
        pins = bool(inner_kwargs.pop("pin_memory", False)) or func in PINS
        if ours and (func in READS or not on_gpu):
            self.waits += 1
            if func is aten.copy_.default and _non_blocking(args, kwargs) and self._is_pinned(args[0]):
                return self._copy_late(args[0], ours[0].inner)
            self.land()
        if func in COPIES and on_gpu and not all(isinstance(each, PretendTensor) for each in taken):
            source = taken[-1]
            same = source.dtype == (args[0].dtype if len(taken) == 2 else kwargs.get("dtype") or source.dtype)
            self.blocking += not (same and _non_blocking(args, kwargs) and self._is_pinned(source))
        if func is FLASH:
            result = flash_attention(*inner_args, **inner_kwargs)
        else:
            result = args[0].clone() if func in PINS else func(*inner_args, **inner_kwargs)
        if func is ATTENTION:
            result = _laid_as_on_a_gpu(result, inner_args[0], inner_args[3:], inner_kwargs)
        if pins:
            self._pinned[result.untyped_storage().data_ptr()] = result
        if not on_gpu:
            return result
        known = {id(each.inner): each for each in ours}  # what an operator in place gives back
        # A view of a tensor from outside inference mode is none of inference mode either.
        inference = ours[0].is_inference() if func.is_view else torch.is_inference_mode_enabled()
        with torch.inference_mode(inference):
            wrapped = _wrapped(result, known)
        if not func.is_view:
            self.launches[str(func)] += 1
            if self._observer is not None:
                self._observer(func, ours, [each for each in _listed(wrapped) if isinstance(each, PretendTensor)])
        return wrapped

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned

    def _copy_late(self, host: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self.begun += 1
        if not self._empty:
            self.late.append((host, values.clone()))
        return host


def flash_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    first_queries: torch.Tensor,
    first_keys: torch.Tensor,
    most_queries: int,
    most_keys: int,
    dropout: float,
    causal: bool,
    *rest: Any,
    seqused_k: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """What CUDA's `_flash_attention_forward` gives for sequences of unequal lengths, which has no form for a CPU.

    Rows [n, heads, D]; sequence i has the queries from first_queries[i] to first_queries[i + 1], and the first
    seqused_k[i] of the keys from first_keys[i] on. Causal: the last query sees them all. Other rows are not written.
    """
    assert queries.dtype in (torch.bfloat16, torch.float16), "FlashAttention takes half precision"
    assert keys.shape == values.shape and queries.shape[-1] == keys.shape[-1] and queries.shape[-1] % 8 == 0
    assert queries.shape[1] % keys.shape[1] == 0 and dropout == 0 and rest == (False,)
    assert all(each.stride(-1) == 1 for each in (queries, keys, values))
    assert all(each.dtype == torch.int32 and each.is_contiguous() for each in (first_queries, first_keys, seqused_k))
    assert len(first_queries) == len(first_keys) == len(seqused_k) + 1
    out = torch.full_like(queries, torch.nan, memory_format=torch.contiguous_format)
    if out.device != META:
        begins, ends = first_queries[:-1].tolist(), first_queries[1:].tolist()
        spans = zip(begins, ends, first_keys[:-1].tolist(), seqused_k.tolist(), strict=True)
        for begin, end, first, used in spans:
            assert 0 <= end - begin <= most_queries and 0 < used <= most_keys and first + used <= len(keys)
            parts = (queries[begin:end], keys[first : first + used], values[first : first + used])
            q, k, v = (each.float().transpose(0, 1) for each in parts)
            k, v = (each.repeat_interleave(len(q) // len(k), 0) for each in (k, v))
            scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
            if causal:
                unseen = torch.ones(end - begin, used, dtype=torch.bool).triu(used - (end - begin) + 1)
                scores = scores.masked_fill(unseen, -torch.inf)
            out[begin:end] = (scores.softmax(-1) @ v).transpose(0, 1).to(out.dtype)
    nothing = out.new_empty(0)
    return out, nothing, nothing, nothing, nothing


def _non_blocking(args: Any, kwargs: Any) -> bool:
    """Whether a copy is one that the host does not wait for, as far as it can."""
    return bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2]))


def _laid_as_on_a_gpu(out: torch.Tensor, query: torch.Tensor, rest: list[Any], named: dict[str, Any]) -> torch.Tensor:
    """The results of attention [B, H, T, D] in the order that CUDA's kernels give them in memory.

    Flash attention takes half precision without a mask, and writes in the order of the queries. The memory-efficient
    one takes all else, and writes [B, T, H, D].
    """
    mask = rest[0] if rest else named.get("attn_mask")
    if mask is None and out.dtype != torch.float32:
        return torch.empty_like(query).copy_(out)
    return out.transpose(1, 2).contiguous().transpose(1, 2)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _unwrapped(value: Any, taken: list[torch.Tensor]) -> Any:
    """An argument with the tensors inside; adds to `taken` its tensors."""
    if isinstance(value, torch.Tensor):
        taken.append(value)
        return value.inner if isinstance(value, PretendTensor) else value
    if isinstance(value, (list, tuple)):
        return [_unwrapped(each, taken) for each in value]
    return value


def _wrapped(value: Any, known: dict[int, PretendTensor]) -> Any:
    """A result with tensors on the GPU."""
    if isinstance(value, torch.Tensor):
        return known[id(value)] if id(value) in known else PretendTensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_wrapped(each, known) for each in value)
    return value


class ForCuda(TorchFunctionMode):
    """Calls with the device cuda get `PRETEND`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(_there(each) if isinstance(each, (torch.device, str)) else each for each in args)
        kwargs = {name: _there(each) if name == "device" else each for name, each in (kwargs or {}).items()}
        return func(*args, **kwargs)


def _there(device: Any) -> Any:
    return PRETEND if device in ("cuda", "cuda:0", torch.device("cuda"), CUDA) else device


class PretendEvent:
    """Stands for `torch.cuda.Event`. Nothing runs beside the CPU but late copies."""

    def __init__(self, gpu: PretendGPU) -> None:
        self._gpu = gpu
        self._begun = 0

    def record(self, *args: Any) -> None:
        """It comes behind all copies that were begun."""
        self._begun = self._gpu.begun

    def synchronize(self) -> None:
        """Wait for these."""
        self._gpu.land(self._begun)


@contextmanager
def pretend_gpu(empty: bool = False, observer: Observer | None = None) -> Iterator[PretendGPU]:
    """A GPU for this thread; as of `PretendGPU`.

    Raises:
        RealGPU: torch has CUDA here.
    """
    if REAL:
        raise RealGPU("a real GPU is at hand, so none can be pretended")
    mode = PretendGPU(empty, observer)
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "Event", lambda: PretendEvent(mode)),
        patch.object(torch.cuda, "mem_get_info", lambda: (MEMORY, MEMORY)),
        mode,
        ForCuda(),
    ):
        yield mode
