"""Linear layers whose weights are kept in fewer bits, for CPUs: with few rows, reading the weights is the work.

Both kinds take and give fp32 and add up in fp32 or exactly; only the weights are rounded. Their kernels are FBGEMM's
(Khudia et al. 2021), which torch brings for x86. A row's result does not depend on the rows beside it.

Shapes: N rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from voice_clone.errors import InvalidArgument

Packing = Literal["fp16", "int8"]

# Of an activation. FBGEMM adds pairs of products of an unsigned and a signed byte in 16 bits, without overflow up to
# 2 * 127 * 127: so one step takes numbers of 7 bits, here -63..63 around a zero point of 64.
STEPS = 63
ZERO_POINT = 64
SMALLEST = 1e-30  # a row of zeros still has a scale


class HalfLinear(nn.Module):
    """Weights in fp16: those of a bf16 checkpoint exactly, but for magnitudes below 6e-5, which lose 3e-8 at most."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight [O, I], bias [O], both floating point."""
        super().__init__()
        with _fbgemm():
            self._packed: Any = _ops.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())

    def forward(self, x: Tensor) -> Tensor:
        """fp32 [..., I] -> fp32 [..., O]."""
        out: Tensor = _ops.linear_dynamic_fp16(x, self._packed)
        return out


class Int8Linear(nn.Module):
    """Weights in int8 with one scale for each output.

    The kernel multiplies bytes, and a byte is too coarse for activations, which have outliers. Each row of activations
    therefore goes in as two: rounded to 7 bits, and what the rounding left, 126 times finer. The second row is all but
    free, because the weights are read once for both.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight [O, I], bias [O], both floating point."""
        super().__init__()
        self._bias = None if bias is None else bias.float()
        values, scales = quantise(weight)
        zero_points = torch.zeros(len(scales), dtype=torch.int64)
        with _fbgemm():
            quantised = torch._make_per_channel_quantized_tensor(values, scales.double(), zero_points, 0)
            self._packed: Any = _ops.linear_prepack(quantised, None)

    def forward(self, x: Tensor) -> Tensor:
        """fp32 [..., I] -> fp32 [..., O]."""
        step = x.abs().amax(dim=-1, keepdim=True).mul_(1.0 / STEPS).clamp_min_(SMALLEST)
        scaled = x / step
        rows = x.new_empty(2, *x.shape)
        torch.round(scaled, out=rows[0])
        torch.sub(scaled, rows[0], out=rows[1]).mul_(2 * STEPS)
        coarse, fine = _ops.linear_with_input_q_dq_qweight_dq_output_fp32(rows, 1.0, ZERO_POINT, self._packed)
        out: Tensor = coarse.add_(fine, alpha=0.5 / STEPS).mul_(step)
        return out if self._bias is None else out.add_(self._bias)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [O, I] -> int8 [O, I] in -127..127 and fp32 scales [O]; their product is the nearest to `weight`."""
    wide = weight.float()
    scales = wide.abs().amax(dim=1).clamp_min_(SMALLEST) / 127
    return (wide / scales[:, None]).round_().to(torch.int8), scales


def pack(module: nn.Module, packing: Packing) -> None:
    """Replace every `nn.Linear` below `module`, on the CPU, by a packed one. Its state dict is of no use then.

    Raises:
        InvalidArgument: this CPU has no such kernels.
    """
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        raise InvalidArgument("precision must be fp32 on this CPU: reduced precisions need an x86 CPU with AVX2")
    kind = {"fp16": HalfLinear, "int8": Int8Linear}[packing]
    for parent in module.modules():
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, kind(child.weight.detach(), None if child.bias is None else child.bias.detach()))


@contextmanager
def _fbgemm() -> Iterator[None]:
    """Pack for FBGEMM, whichever library torch prefers on this CPU."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        yield
    finally:
        torch.backends.quantized.engine = engine


_ops: Any = torch.ops.quantized
