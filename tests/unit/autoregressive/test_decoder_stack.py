"""A stack of decoder layers with every option follows the formula: prompts in pieces, steps, extensions."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.families.small_stack import LENGTH, OPTIONS, PLAIN, inputs, make, on_gpu
from tests.support.pretend_gpu import pretend_gpu
from tests.support.unpacked import unpack
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.native_projections import pack_projections
from voice_clone.autoregressive.stack.native_stack import SEQUENCES, TURNED, NativeStack, layers_by_name
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.to_native import native_stack
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.weights import as_array, pack
from voice_clone.native.packed_file import NOWHERE
from voice_clone.settings import Precision


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def normed_as(config: StackConfig, x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    if config.norm == "rms":
        return rms(x, weights[f"{name}.weight"], config.rms_norm_eps)
    return rms(x - x.mean(-1, keepdim=True), weights[f"{name}.weight"], config.rms_norm_eps) + weights[f"{name}.bias"]


def turned(x: Tensor, config: StackConfig) -> Tensor:
    """[T, H, D], turned pair by pair."""
    out = x.clone()
    if config.rope == "none":
        return out
    half = config.head_dim // 2
    for position in range(len(x)):
        for pair in range(half):
            factor = config.rope_factors[pair] if config.rope_factors else 1.0
            angle = position / factor * config.rope_theta ** (-2 * pair / config.head_dim)
            cos, sin = (torch.tensor(f(angle)) for f in (math.cos, math.sin))
            if config.rope_in_bf16:
                cos, sin = cos.bfloat16().float(), sin.bfloat16().float()
            i, j = pair, pair + half
            out[position, :, i] = x[position, :, i] * cos - x[position, :, j] * sin
            out[position, :, j] = x[position, :, j] * cos + x[position, :, i] * sin
    return out


def projected(x: Tensor, weights: dict[str, Tensor], part: str) -> Tensor:
    product = x @ weights[f"self_attn.{part}_proj.weight"].T
    return product + weights.get(f"self_attn.{part}_proj.bias", torch.zeros(1))


def by_formula(stack: DecoderStack, x: Tensor) -> Tensor:
    """[T, C] -> [T, C], position by position and head by head."""
    config, state = stack.config, stack.state_dict()
    for index in range(config.num_hidden_layers):
        weights = {name.removeprefix(f"layers.{index}."): tensor for name, tensor in state.items()}
        normed = normed_as(config, x, weights, "input_layernorm")
        q, k, v = (projected(normed, weights, part).view(len(x), -1, config.head_dim) for part in "qkv")
        if config.qk_norm:
            q = rms(q, weights["self_attn.q_norm.weight"], config.rms_norm_eps)
            k = rms(k, weights["self_attn.k_norm.weight"], config.rms_norm_eps)
        q, k = turned(q, config), turned(k, config)
        seen = torch.zeros(len(x), config.num_attention_heads, config.head_dim)
        for position in range(len(x)):
            last = position if config.causal else len(x) - 1
            for head in range(config.num_attention_heads):
                group = head * config.num_key_value_heads // config.num_attention_heads
                scores = k[: last + 1, group] @ q[position, head] / config.head_dim**0.5
                seen[position, head] = scores.softmax(0) @ v[: last + 1, group]
        x = x + seen.flatten(1) @ weights["self_attn.o_proj.weight"].T
        normed = normed_as(config, x, weights, "post_attention_layernorm")
        if config.mlp == "gelu_tanh":
            up = (normed @ weights["mlp.fc1.weight"].T).double()
            tanh = (math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)).tanh()
            x = x + (0.5 * up * (1 + tanh)).float() @ weights["mlp.fc2.weight"].T
            continue
        gate, up = (normed @ weights[f"mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ weights["mlp.down_proj.weight"].T
    return normed_as(config, x, state, "norm")


def test_a_stream_that_outgrows_the_first_rotary_tables_has_the_bits_of_whole_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    length = TURNED + 8
    x = torch.randn(length, PLAIN.hidden_size, generator=torch.Generator().manual_seed(1))
    borders = [0, TURNED - 4, TURNED + 4, length]
    rows = []
    for turned in (TURNED, length):
        monkeypatch.setattr("voice_clone.autoregressive.stack.native_stack.TURNED", turned)
        stack = native_stack(make(PLAIN), "fp32")
        cache = stack.new_cache(1, length)
        rows += [torch.stack([stack.prefill(cache, 0, x[a:b], a) for a, b in pairwise(borders)])]
    assert torch.equal(*rows)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_prompts_and_steps_follow_the_formula(options: dict[str, Any]) -> None:
    stack = make(replace(PLAIN, **options))
    embeds, others = inputs(), inputs(2)
    expected, other = by_formula(stack, embeds), by_formula(stack, others)
    cache = stack.new_cache(3, LENGTH)
    torch.testing.assert_close(stack.prefill(cache, 1, embeds[:4]), expected[3])
    torch.testing.assert_close(stack.prefill(cache, 1, embeds[4:9], offset=4), expected[8])
    stack.prefill(cache, 2, others[:2])
    for step in range(9, LENGTH):
        both = torch.stack([embeds[step], others[step - 7]])
        for seen in (None, [step + 1, step - 6]):
            hidden = stack.decode(cache, [1, 2], [step, step - 7], both.clone(), seen)
            torch.testing.assert_close(hidden, torch.stack([expected[step], other[step - 7]]))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_prompts_that_are_read_together_follow_the_formula(options: dict[str, Any]) -> None:
    """Two streams' second pieces in one call, between unused positions; a third place that has no owner."""
    stack = make(replace(PLAIN, **options))
    both = [inputs(), inputs(2)]
    cache = stack.new_cache(4, LENGTH + 1)
    for slot, embeds in zip((3, 1), both, strict=True):
        stack.prefill(cache, slot, embeds[:2])
    positions = torch.tensor([2, 3, LENGTH, 2, 3, 4, LENGTH])
    owner = torch.tensor([0, 0, 0, 1, 1, 1, 0])
    embeds = torch.cat([both[0][2:4], torch.full_like(both[0][:1], torch.nan), both[1][2:5], both[0][:1]])
    hidden = stack.prefill_together(cache, torch.tensor([3, 1, 3]), owner, positions, embeds, LENGTH)
    torch.testing.assert_close(hidden[:2], by_formula(stack, both[0])[2:4])
    torch.testing.assert_close(hidden[3:6], by_formula(stack, both[1])[2:5])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fixed_shapes_and_extensions_follow_the_formula(options: dict[str, Any]) -> None:
    stack = make(replace(PLAIN, **options))
    embeds = inputs()
    expected = by_formula(stack, embeds)
    cache = stack.new_cache(2, LENGTH)
    stack.prefill(cache, 0, embeds[:6])
    for step in range(6, LENGTH):
        hidden = stack.decode_first(cache, torch.tensor([step]), embeds[step : step + 1].clone(), LENGTH)
        torch.testing.assert_close(hidden[0], expected[step])
    fresh = stack.new_frame_cache(2, LENGTH)
    both = torch.stack([embeds, embeds])
    torch.testing.assert_close(stack.extend(fresh, both[:, :5].clone(), 0)[1], expected[4])
    for start in range(5, LENGTH):
        torch.testing.assert_close(stack.extend(fresh, both[:, start : start + 1], start)[0], expected[start])


def test_positions_of_a_call_see_each_other_without_causality() -> None:
    stack = make(replace(PLAIN, causal=False))
    embeds = inputs()
    torch.testing.assert_close(stack.prefill(stack.new_cache(1, LENGTH), 0, embeds), by_formula(stack, embeds)[-1])
    last_first = torch.flip(embeds, [0])
    changed = stack.prefill(stack.new_cache(1, LENGTH), 0, last_first)
    assert not torch.allclose(changed, stack.prefill(stack.new_cache(1, LENGTH), 0, embeds))


@pytest.mark.parametrize("options", [{}, {"qk_norm": False}, {"rope": "none", "qkv_bias": True}], ids=str)
def test_sequences_together_follow_the_formula(options: dict[str, Any]) -> None:
    """In torch, on a pretended GPU, in native code; there, with the same bits, more sequences than one call takes."""
    config = replace(PLAIN, causal=False, **options)
    some = torch.stack([inputs(seed) for seed in range(3)])
    expected = torch.stack([by_formula(make(config), each) for each in some])
    given = some.clone()
    torch.testing.assert_close(make(config).together(some), expected)
    assert torch.equal(some, given), "what was given stays"
    with pretend_gpu():
        torch.testing.assert_close(on_gpu(config).together(some.to("cuda")).cpu(), expected)
    native = native_stack(make(config), "fp32")
    many = some.repeat(SEQUENCES, 1, 1)
    torch.testing.assert_close(native.together(many), expected.repeat(SEQUENCES, 1, 1))
    assert torch.equal(native.together(many)[-1], native.together(some)[-1])
    assert torch.equal(native.together(some[:, :4])[2], native.together(some[2:, :4])[0])


def test_two_stacks_share_a_cache() -> None:
    """Each has some of the layers in it, its own way to turn, and computes as with a cache of its own."""
    configs = [replace(PLAIN, num_hidden_layers=3), replace(PLAIN, rope="none")]
    cache = make(replace(PLAIN, num_hidden_layers=5)).new_cache(3, LENGTH)
    stacks = [make(config) for config in configs]
    places = (slice(3), slice(3, 5))
    parts = [cache.part(place, stack.config, stack.like) for place, stack in zip(places, stacks, strict=True)]
    for stack, part in zip(stacks, parts, strict=True):
        stack.prefill(part, 2, inputs()[:6])
    cache.move(2, 0, 6)
    for stack, part in zip(stacks, parts, strict=True):
        got = stack.decode(part, [0], [6], inputs()[6:7].clone())
        torch.testing.assert_close(got[0], by_formula(stack, inputs())[6])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_native_code_follows_the_formula(options: dict[str, Any]) -> None:
    stack = make(replace(PLAIN, **options))
    embeds = inputs()
    expected = by_formula(stack, embeds)
    native = native_stack(stack, "fp32")
    cache = native.new_cache(2, LENGTH)
    torch.testing.assert_close(native.prefill(cache, 1, embeds[:9]), expected[8])
    for step in range(9, LENGTH):
        torch.testing.assert_close(native.decode(cache, [1], [step], embeds[step : step + 1])[0], expected[step])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_matrices_of_different_types_are_joined_as_numbers(precision: Precision) -> None:
    """As in a checkpoint into which some matrices were merged in another type: bf16, which numpy has as its bits."""
    config = replace(PLAIN, num_hidden_layers=1)
    ones = as_array(torch.ones(1).bfloat16())[0]

    def read(name: str, shape: tuple[int, ...]) -> Array:
        merged = name.endswith(("k_proj.weight", "up_proj.weight"))
        return np.full(shape, ones) if merged else np.ones(shape, np.float32)

    stack = NativeStack(config, precision, partial(layers_by_name, read, "", config))
    assert all(set(values.flat) <= {0, ones} for values, _ in stack.weights), "0: of the padding"


@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_biases_stay_exact_at_any_precision(precision: Precision) -> None:
    """As large as they are here they would show: queries, keys and values are those of the rounded projection alone."""
    config = replace(PLAIN, qk_norm=False, qkv_bias=True, num_hidden_layers=1)
    stack, rounded = make(config), make(config)
    for each in (stack, rounded):
        each.layers[0].self_attn.qkv_proj.bias.mul_(100)
    for layer in rounded.layers.modules():
        if isinstance(layer, torch.nn.Linear):
            weight = layer.weight
            weight.copy_(unpack(pack(weight, precision), *weight.shape))
    embeds = inputs()
    native = native_stack(stack, precision)
    found = native.prefill(native.new_cache(1, LENGTH), 0, embeds)
    wanted = rounded.prefill(rounded.new_cache(1, LENGTH), 0, embeds)
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)  # activations are rounded, too


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sequences_of_unequal_lengths_follow_the_formula(options: dict[str, Any]) -> None:
    stack = make(replace(PLAIN, **options, causal=False))
    long, short = inputs(1), inputs(2)[:5]
    both = torch.nn.utils.rnn.pad_sequence([long, short], batch_first=True, padding_value=7.0)
    kept = both.clone()
    mask = torch.tensor([[True] * LENGTH, [True] * 5 + [False] * (LENGTH - 5)])
    found = stack.together(both, mask)
    assert torch.equal(both, kept)
    for row, each in zip(found, (long, short), strict=True):
        torch.testing.assert_close(row[: len(each)], by_formula(stack, each), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(stack.together(each[None])[0], row[: len(each)], rtol=1e-4, atol=1e-5)


def test_positions_with_a_direction_do_not_run_together() -> None:
    with pytest.raises(ValueError, match="see all others"):
        make(PLAIN).together(inputs()[None])


@pytest.mark.parametrize("options", [each for each in OPTIONS if not each.keys() & {"norm", "mlp"}], ids=str)
@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-5), ("bf16", 0.02), ("int8", 0.05)])
def test_native_projections_compute_what_the_stack_does(
    options: dict[str, Any], precision: Precision, error: float
) -> None:
    stack, native = (make(replace(PLAIN, **options, causal=False)) for _ in range(2))
    full = native.state_dict()
    native.to("meta")
    native.norm.load_state_dict({"weight": full["norm.weight"]}, assign=True)

    def load(layer: torch.nn.Module, index: int) -> None:
        prefix = f"layers.{index}."
        state = {name.removeprefix(prefix): each for name, each in full.items() if name.startswith(prefix)}
        layer.load_state_dict(state, assign=True)

    pack_projections(native, precision, load, NOWHERE)
    x = torch.stack([inputs(1), inputs(2)])
    expected, found = stack.together(x), native.together(x)
    assert (found - expected).square().mean().sqrt() < error * expected.square().mean().sqrt()
