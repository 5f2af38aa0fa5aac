"""Attention over each stream's own length: by rows as they lie in memory, and only where it can be had."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support import pretend_gpu as pretended
from tests.support.families.small_stack import PLAIN, on_gpu
from tests.support.pretend_gpu import pretend_gpu
from voice_clone.autoregressive.stack.varlen_attention import Starts, VarlenDecode, VarlenPrefill, varlen_works

CONFIG = replace(PLAIN, num_attention_heads=6)
MOST = 21  # positions of the cache


@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (4, 4), (4, 1)])
def test_each_stream_reads_its_own_positions_alone(heads: int, groups: int) -> None:
    """As under a mask. What lies behind, even NaN, plays no part, and neither do other slots; nothing is copied."""
    config = replace(CONFIG, num_attention_heads=heads, num_key_value_heads=groups)
    generator = torch.Generator().manual_seed(0)
    positions = torch.tensor([0, MOST - 1, 7, 12])
    batch = len(positions)
    projected = torch.randn(batch, heads + 2 * groups, 8, generator=generator).bfloat16()
    cache = torch.randn(batch + 2, 2 * groups, MOST, 8, generator=generator).bfloat16()
    keys, values = cache[:batch].float().split(groups, 1)
    mask = torch.arange(MOST) <= positions[:, None, None, None]
    queries = projected[:, :heads].float().reshape(batch, groups, -1, 8)
    wanted = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask).reshape(batch, heads, 8)
    for slot, position in enumerate(positions.tolist()):
        cache[slot, :, position + 1 :] = torch.nan
    cache[batch:] = torch.nan
    with pretend_gpu() as gpu, torch.inference_mode():
        device = torch.device("cuda")
        own = VarlenDecode.of(Starts.of(batch, config, MOST, device), positions.to(device), MOST)
        on_gpu = projected.to(device), cache.to(device)
        gpu.launches.clear()
        got = own.attend(*on_gpu)[:, :heads].cpu()
        assert gpu.launches == {str(pretended.FLASH): 1}
    torch.testing.assert_close(got.float(), wanted, rtol=0, atol=0.02)


@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (4, 4), (4, 1)])
def test_a_position_of_a_prompt_sees_those_up_to_itself(heads: int, groups: int) -> None:
    """Of three streams in any slots, one of which reads nothing; what lies behind, even NaN, plays no part."""
    generator = torch.Generator().manual_seed(0)
    pieces = {4: range(6), 1: range(9, 20)}  # by slot
    positions = [position for piece in pieces.values() for position in piece]
    projected = torch.randn(len(positions) + 2, heads + 2 * groups, 8, generator=generator).bfloat16()
    cache = torch.randn(5, 2 * groups, MOST, 8, generator=generator).bfloat16()
    wanted, rows = [], iter(projected)
    for slot, piece in pieces.items():
        for position in piece:
            keys, values = cache[slot, :, : position + 1].float().split(groups)
            queries = next(rows)[:heads].float().view(groups, -1, 8)
            wanted.append(F.scaled_dot_product_attention(queries, keys, values).reshape(heads, 8))
    for slot in range(5):
        cache[slot, :, pieces[slot][-1] + 1 if slot in pieces else 0 :] = torch.nan
    with pretend_gpu() as gpu, torch.inference_mode():
        begins, slots, places = (
            torch.tensor(each, device="cuda") for each in ([0, 6, 17, 17], [4, 1, 4], [*positions, MOST - 1, MOST - 1])
        )
        on_gpu = projected.to("cuda"), cache.to("cuda")
        own = VarlenPrefill.of(begins, slots, places, on_gpu[1])
        gpu.launches.clear()
        got = own.attend(*on_gpu)[: len(positions)].cpu()
        assert gpu.launches == {str(pretended.FLASH): 1}
    torch.testing.assert_close(got.float(), torch.stack(wanted), rtol=0, atol=0.02)


def test_rows_without_a_stream_read_few() -> None:
    starts = Starts.of(4, CONFIG, MOST, torch.device("cpu"))
    used = VarlenDecode.of(starts, torch.tensor([0, 3, MOST - 1, MOST]), MOST).used
    assert used.tolist() == [1, 1, 4, 4, MOST, MOST, 1, 1]


@pytest.mark.parametrize("more", [{}, {"qk_norm": False, "qkv_bias": True}])
def test_steps_are_those_under_a_mask(more: dict[str, Any]) -> None:
    """Streams at different positions, one row without a stream, NaN in another slot; the same and in fewer shapes."""
    config, length, steps = replace(CONFIG, **more), 24, 9
    embeds = torch.randn(steps, 4, 24, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = []
    for own in (False, True):
        with pretend_gpu() as gpu, torch.inference_mode():
            stack = on_gpu(config, torch.bfloat16)
            assert varlen_works(config, stack.like)
            stack.varlen = own
            cache = stack.new_cache(6, length + 1)
            cache.keys[4:], cache.values[4:] = torch.nan, torch.nan
            states = []
            for number, x in enumerate(embeds):
                positions = torch.tensor([number, number + 9, length, number + 3], device="cuda")
                # Under a mask a graph reads as far as the longest stream; here always to the end.
                most = length if own else 20
                gpu.launches.clear()
                states.append(stack.decode_first(cache, positions, x.to("cuda"), most).cpu())
            assert bool(gpu.launches[str(pretended.FLASH)]) == own
            assert bool(gpu.launches[str(pretended.ATTENTION)]) != own
        found.append(torch.stack(states)[:, [0, 1, 3]].float())
    assert torch.isfinite(found[0]).all() and found[0].std() > 0.5
    assert (found[0] - found[1]).abs().max() < 0.06


@pytest.mark.parametrize(
    ("more", "dtype", "can"),
    [
        ({}, torch.bfloat16, True),
        ({}, torch.float16, True),
        ({}, torch.float32, False),
        ({"head_dim": 12}, torch.bfloat16, False),
    ],
)
def test_where_it_can_be_had(more: dict[str, Any], dtype: torch.dtype, can: bool) -> None:
    config = replace(CONFIG, **more)
    with pretend_gpu():
        assert varlen_works(config, torch.zeros(1, dtype=dtype, device="cuda")) == can
    assert not varlen_works(config, torch.zeros(1, dtype=dtype))


flash_attention = pretended.flash_attention


def wrong(*args: Any, **named: Any) -> Any:
    out, *rest = flash_attention(*args, **named)
    return (out + 0.1, *rest)


def not_finite(*args: Any, **named: Any) -> Any:
    out, *rest = flash_attention(*args, **named)
    return (torch.full_like(out, torch.nan), *rest)


def missing(*args: Any, **named: Any) -> Any:
    raise TypeError("unexpected keyword argument seqused_k")


@pytest.mark.parametrize(
    ("operator", "warning"),
    [(wrong, r"off by \[0\.1"), (not_finite, r"off by \[nan"), (missing, "cannot be had.*seqused_k")],
)
def test_what_does_not_do_what_it_should_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, operator: Any, warning: str
) -> None:
    """An older torch, a GPU without such kernels, a wrong result: the log says so, and attention goes by masks."""
    monkeypatch.setattr(pretended, "flash_attention", operator)
    with pretend_gpu():
        assert not varlen_works(CONFIG, torch.zeros(1, dtype=torch.bfloat16, device="cuda"))
    assert re.search(warning, caplog.text) and caplog.records[0].levelname == "WARNING"
