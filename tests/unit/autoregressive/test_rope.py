"""The stack's way on a GPU: queries and keys turn within their projection, keys and values are written together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.families.small_stack import LENGTH, OPTIONS, PLAIN, inputs, make, on_gpu
from tests.support.pretend_gpu import pretend_gpu
from voice_clone.autoregressive.stack.decoder_stack import DecoderLayer, DecoderStack
from voice_clone.autoregressive.stack.native_stack import rotary_arrays
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.rope import (
    fold_norms,
    norm_and_rotate_in_place,
    norm_tables,
    rotary_tables,
    rotation_tables,
)
from voice_clone.layers.attention import apply_rotary, normalise

MORE: list[dict[str, Any]] = [{"num_attention_heads": 2}, {"num_attention_heads": 8}, {"num_key_value_heads": 1}]


@pytest.mark.parametrize("options", [*OPTIONS, *MORE], ids=str)
def test_every_call_equals_the_cpus(options: dict[str, Any]) -> None:
    """Prompts, steps of fixed and other shapes, positions of several streams, extensions; and what the cache holds."""
    config = replace(PLAIN, **options)
    stack = make(config)
    expected, states = run(stack, "cpu")
    with pretend_gpu():
        got, kept = run(on_gpu(config), "cuda")
        for mine, right in zip(got, expected, strict=True):
            torch.testing.assert_close(mine.cpu(), right, rtol=1e-5, atol=1e-6)
        for mine, right in zip(kept, states, strict=True):
            torch.testing.assert_close(mine.cpu(), right, rtol=1e-5, atol=1e-6)


@torch.inference_mode()
def run(stack: DecoderStack, device: str) -> tuple[list[Tensor], list[Tensor]]:
    """The results of all calls, and the memory behind them."""
    first, second = (inputs(seed).to(device) for seed in (1, 2))
    cache, out = stack.new_cache(3, LENGTH + 1), []
    out.append(stack.prefill(cache, 2, first[:4]))
    out.append(stack.prefill(cache, 2, first[4:6], offset=4))
    cache.move(2, 0, 6)
    slots, owner, positions = (torch.tensor(each).to(device) for each in ([1, 0], [0, 0, 1], [0, 1, 6]))
    embeds = torch.cat([second[:2], first[6:7]])
    out.append(stack.prefill_together(cache, slots, owner, positions, embeds, LENGTH))
    out.append(stack.decode(cache, [0, 1], [7, 2], torch.stack([first[7], second[2]])))
    out.append(stack.decode(cache, [0, 1], [8, 3], torch.stack([first[8], second[3]]), [9, 4]))
    both = torch.stack([first[9], second[4]])
    out.append(stack.decode_first(cache, torch.tensor([9, 4]).to(device), both, LENGTH))
    kept = [cache.keys[:, :2, :, :LENGTH].clone(), cache.values[:, :2, :, :LENGTH].clone()]
    cache.wipe(0, 5)
    kept += [cache.keys.clone(), cache.values.clone()]
    cache.clear()
    kept += [cache.keys, cache.values]
    fresh, pair = stack.new_frame_cache(3, LENGTH), torch.stack([first, second])
    out.append(stack.extend(fresh, pair[:, :2].clone(), 0))
    out += [stack.extend(fresh, pair[:, place : place + 1].clone(), place) for place in range(2, 5)]
    return out, kept


def test_the_weights_stay_official() -> None:
    """Also those of which a copy in another order was used."""
    with pretend_gpu():
        stack = on_gpu(PLAIN)
        run(stack, "cuda")
        kept = [layer.self_attn._columns._value for layer in stack.layers if isinstance(layer, DecoderLayer)]
        assert all(each is not None for each in kept)
        for name, tensor in make(PLAIN).state_dict().items():
            assert torch.equal(stack.state_dict()[name].cpu(), tensor)


@torch.inference_mode()
def test_a_frame_of_a_code_predictor_leaves_nothing_to_the_next() -> None:
    """Neither what was not finite, nor what was of another number of streams."""
    with pretend_gpu():
        stack = on_gpu(PLAIN)
        cache, pair = stack.new_frame_cache(4, 5), torch.stack([inputs(1), inputs(2)]).to("cuda")
        assert cache.nbytes == 4 * PLAIN.num_hidden_layers * 4 * 5 * (4 + 2 * 2) * PLAIN.head_dim

        def frame(x: Tensor) -> list[Tensor]:
            first = stack.extend(cache, x[:, :2].clone(), 0)
            return [first, *(stack.extend(cache, x[:, place : place + 1].clone(), place) for place in range(2, 5))]

        expected = frame(pair)
        frame(torch.full_like(torch.cat([pair, pair]), torch.nan))
        for number, got in enumerate([frame(pair), frame(pair[:1])]):
            for mine, right in zip(got, expected, strict=True):
                torch.testing.assert_close(mine.cpu(), right[: 2 - number].cpu(), rtol=1e-5, atol=1e-6)
        broken = pair.clone()
        broken[1] = torch.nan
        for mine, right in zip(frame(broken), expected, strict=True):
            torch.testing.assert_close(mine[0].cpu(), right[0].cpu(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"rope_in_bf16": True}, {"rope": "none"}, {"rope_factors": (1.0, 1.5, 2.0, 7.0)}], ids=str
)
def test_torch_and_native_code_turn_by_the_same_numbers(options: dict[str, Any]) -> None:
    config = replace(PLAIN, head_dim=8, **options)
    for table, half in zip(rotary_tables(config, 300, torch.zeros(1)), rotary_arrays(config, 300), strict=True):
        assert np.array_equal(table[:, 4:].numpy(), half) and torch.equal(table[:, :4].abs(), table[:, 4:].abs())


def test_half_precision_is_no_worse_than_before() -> None:
    """Against fp64: the error is that of rounding once behind the norm and once at the end."""
    config = replace(PLAIN, num_attention_heads=16, num_key_value_heads=8, head_dim=128)
    random = torch.Generator().manual_seed(0)
    qkv = torch.randn(5, 3, 32, 128, generator=random).bfloat16()
    norms = [(1 + 0.2 * torch.randn(128, generator=random)).bfloat16() for _ in range(2)]
    places = torch.randint(0, 4096, (5, 3), generator=random)
    weights = torch.stack([norms[0]] * 16 + [norms[1]] * 8)
    exact = rotated((qkv[:, :, :24].double(), weights.double()), places, config, torch.float64)
    before = rotated((qkv[:, :, :24], weights), places, config, torch.bfloat16)
    now = qkv.clone()
    table = fold_norms(
        rotation_tables(config, 4096, torch.device("cpu"))[places], norm_tables(config, norms[:1], norms[1:])
    )[0]
    norm_and_rotate_in_place(now, table, config, config.rms_norm_eps)
    assert torch.equal(now[:, :, 24:], qkv[:, :, 24:]), "the values stay"
    old, new = ((each.double() - exact).square().mean().sqrt() for each in (before, now[:, :, :24]))
    assert 0 < new < 0.8 * old


def rotated(x: tuple[Tensor, Tensor], places: Tensor, config: StackConfig, dtype: torch.dtype) -> Tensor:
    """Norm, weights and rotation one after the other, as on other devices than GPUs."""
    values, weights = x
    if dtype == torch.float64:
        normed = values * (values.square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt()
    else:
        normed = normalise(values, config.rms_norm_eps)
    cos, sin = (each[places] for each in rotary_tables(config, 4096, torch.zeros(1, dtype=dtype)))
    return apply_rotary((normed * weights).transpose(1, 2), cos, sin).transpose(1, 2)


def test_what_is_not_finite_stays_in_its_row() -> None:
    random = torch.Generator().manual_seed(0)
    qkv = torch.randn(3, 1, 8, 8, generator=random)
    norms = [torch.ones(8)]
    table = fold_norms(
        rotation_tables(PLAIN, 4, torch.device("cpu"))[torch.tensor([[1], [2], [3]])], norm_tables(PLAIN, norms, norms)
    )[0]
    broken = qkv.clone()
    broken[1] = torch.nan
    for each in (qkv, broken):
        norm_and_rotate_in_place(each, table, PLAIN, 1e-6)
    assert torch.equal(broken[[0, 2]], qkv[[0, 2]]) and broken[1].isnan().all()
