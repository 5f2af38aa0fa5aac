"""The times of Euler's method against torch's own arithmetic, in fp32 and in bf16."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.voxcpm2.networks.talker import TimeMLP
from voice_clone.families.voxcpm2.networks.times import LONGEST, TIME_SCALE, time_table
from voice_clone.families.voxcpm2.options import LEAST_STEPS, MOST_STEPS

SIZE = 64


def embedded(times: Tensor, mlp: TimeMLP) -> Tensor:
    """Of times [N] in any dtype, the rows [N, C] in it."""
    places = torch.arange(SIZE // 2, dtype=times.dtype)
    angles = TIME_SCALE * times[:, None] * torch.exp(places * -(math.log(LONGEST) / (SIZE // 2 - 1)))
    first, second = ([each.to(times.dtype) for each in linear.parameters()] for linear in (mlp.linear_1, mlp.linear_2))
    waves = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return F.linear(F.silu(F.linear(waves, *first)), *second)


def official(steps: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Times and lengths of the calls, as `UnifiedCFM.solve_euler` makes them."""
    span = torch.linspace(1, 0, steps + 1, dtype=dtype)
    span = span + (torch.cos(torch.pi / 2 * span) - 1 + span)
    time, length, times, lengths = span[0], span[0] - span[1], [], []
    for step in range(1, steps + 1):
        times.append(time)
        lengths.append(length)
        time = time - length
        if step < steps:
            length = time - span[step + 1]
    return torch.stack(times[1:]), torch.stack(lengths[1:])


@pytest.mark.parametrize(("dtype", "last_bits"), [(torch.float32, 2**-23), (torch.bfloat16, 2**-8)])
@torch.inference_mode()
def test_times_are_those_of_torch(dtype: torch.dtype, last_bits: float) -> None:
    torch.manual_seed(0)
    mlps = [TimeMLP(SIZE), TimeMLP(SIZE)]
    for parameter in nn.ModuleList(mlps).parameters():
        parameter.mul_(2)  # rows far from their bias
    rows, lengths = map(torch.from_numpy, time_table(mlps[0].arrays, mlps[1].arrays, dtype == torch.bfloat16))
    still = embedded(torch.zeros(1, dtype=dtype), mlps[1])
    for steps in range(LEAST_STEPS, MOST_STEPS + 1):
        times, expected = official(steps, dtype)
        made = lengths[steps, : steps - 1]
        assert float((made - expected.float()).abs().max()) <= (4 * last_bits if dtype == torch.float32 else 0)
        wanted = (embedded(times, mlps[0]) + still).float()
        error = (rows[steps, : steps - 1] - wanted).abs()
        # fp32: an angle of up to 1,000 has steps of 2 ** -14.
        assert float(error.max()) < (2**-12 if dtype == torch.float32 else 4 * last_bits) * float(wanted.abs().max())
        assert not rows[steps, steps - 1 :].any() and not lengths[steps, steps - 1 :].any()
    changed = time_table(mlps[0].arrays, mlps[1].arrays, dtype != torch.bfloat16)
    assert float((rows - torch.from_numpy(changed[0])).abs().max()) > 2**-9, "in the other dtype they are others"
