"""Native code: products at every precision, stacks of layers as in torch, rows that do not change each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from numba import njit
from torch import Tensor, nn

from tests.support.families.factories import CheckpointFactory
from tests.support.families.talkers import codes_of, make_prompt, make_talker, native_of, read_config
from tests.support.unpacked import unpack
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.stack.to_native import native_stack
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts import talker as talker_stage
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.native.kernels.arithmetic import HIGHEST, LOWEST, exponential
from voice_clone.native.kernels.matrix import tile_products
from voice_clone.native.matrix.linear import MOST_ROWS, PackedLinear
from voice_clone.native.matrix.linear_module import NativeLinear
from voice_clone.native.matrix.weights import Packed, head_precision, pack
from voice_clone.native.sizes import WIDTH
from voice_clone.native.thread_pool import ThreadPool, thread_pool
from voice_clone.settings import PRECISIONS, Precision, Settings

FRAMES = 24
ByTorch = Callable[[Precision], tuple[Talker, list[npt.NDArray[np.int32]]]]
DOTS = pytest.mark.skipif(not INSTRUCTIONS.bf16_dots, reason="this processor has no dot products of bf16")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSConfig:
    return read_config("projected", tmp_path_factory.mktemp("checkpoint") / "folder")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    count: int = request.param
    monkeypatch.setattr("voice_clone.native.thread_pool._pool", ThreadPool(count))
    monkeypatch.setattr("voice_clone.native.thread_pool.MIN_PARALLEL_MULTIPLICATIONS", 0)
    return count


def linear(outputs: int, inputs: int, bias: bool = False) -> nn.Linear:
    generator = torch.Generator().manual_seed(outputs)
    layer = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    layer.weight.copy_(torch.randn(outputs, inputs, generator=generator) * inputs**-0.5)
    return layer


def rounded_rows(x: Tensor) -> Tensor:
    """Activations [..., I] as a product with int4 weights rounds them: each group of 32 to 8 bits of its largest."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % 32))
    groups = padded.view(*x.shape[:-1], -1, 32)
    largest = groups.abs().amax(-1, keepdim=True)
    values: Tensor = (groups * (127 / largest) + 0.5).floor() * (largest.double() / 127)
    return values.flatten(-2)[..., : x.shape[-1]]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("outputs", "inputs", "bias"), [(48, 64, False), (131, 1000, True), (5, 128, True)])
def test_a_product_is_that_with_the_rounded_weights(
    precision: Precision, outputs: int, inputs: int, bias: bool, threads: int
) -> None:
    layer = linear(outputs, inputs, bias)
    native, weight = NativeLinear.of(layer, precision), unpack(pack(layer.weight, precision), outputs, inputs).double()
    for rows in (1, 2, 4, 7, 13):
        x = (
            torch.randn(rows, 1, inputs, generator=torch.Generator().manual_seed(1))
            * torch.logspace(-4, 4, rows)[:, None, None]
        )
        x[..., 7] *= 100  # activations have outliers
        got = native(x)
        expected = (rounded_rows(x) if precision == "int4" else x.double()) @ weight.T
        size = expected.std(dim=-1, keepdim=True)
        expected += layer.bias if bias else 0
        assert got.shape == (rows, 1, outputs) and got.dtype == torch.float32
        assert ((got - expected).abs() / size).max() < (1e-3 if precision == "int8" else 1e-4), rows
    assert thread_pool().threads == threads


def prompts_product(layer: nn.Linear, x: Tensor) -> Tensor:
    """bf16 weights times rows [N, I] of a prompt."""
    product = PackedLinear(pack(layer.weight, "bf16"), len(layer.weight), prompts=True)
    return torch.from_numpy(product(x.numpy()))


@DOTS
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 64), (131, 1000), (5, 128)])
def test_prompts_are_rounded_to_bf16(outputs: int, inputs: int, threads: int) -> None:
    layer = linear(outputs, inputs)
    x = torch.randn(21, inputs, generator=torch.Generator().manual_seed(1)) * torch.logspace(-4, 4, 21)[:, None]
    x[3, :4] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 3.4e38])  # two halves to the even one; infinity
    weight = layer.weight.bfloat16().double()
    expected = x.bfloat16().double() @ weight.T
    got = prompts_product(layer, x)
    finite = expected.isfinite().all(dim=-1)
    assert finite.sum() == 20 and torch.equal(got[3].isfinite(), expected[3].isfinite())
    assert ((got - expected).abs() / expected.std(dim=-1, keepdim=True))[finite].max() < 1e-4
    for rows in (1, 3, 4, 7, 9, 13):
        assert torch.equal(prompts_product(layer, x[-rows:]), got[-rows:])
    spoilt = x.clone()
    spoilt[2, 5] = torch.nan
    again = prompts_product(layer, spoilt)
    assert not again[2].isfinite().any() and torch.equal(again[4:], got[4:])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_prompt_is_the_same_in_chunks_of_any_size(precision: Precision, config: Qwen3TTSConfig, threads: int) -> None:
    stack = native_stack(make_talker(config, 0).stack, precision)
    embeds = torch.randn(19, config.talker.hidden_size, generator=torch.Generator().manual_seed(0))
    found = []
    for sizes in ([19], [1] * 19, [9, 8, 2], [3, 5, 11]):
        cache, start = stack.new_cache(1, 19), 0
        for size in sizes:
            hidden, start = stack.prefill(cache, 0, embeds[start : start + size], start), start + size
        found.append((hidden.numpy(), cache.keys, cache.values))
    cache, positions = stack.new_cache(1, 19), torch.arange(19)
    rows = stack.prefill_together(cache, torch.tensor([0]), torch.zeros_like(positions), positions, embeds, 19)
    found.append((rows[-1].numpy(), cache.keys, cache.values))
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


@DOTS
def test_a_prompt_in_bf16_is_closer_than_bf16_throughout(config: Qwen3TTSConfig) -> None:
    exact, halves = make_talker(config, 0), make_talker(config, 0).to(torch.bfloat16)
    native = native_of(make_talker(config, 0), "bf16")
    embeds = torch.randn(40, config.talker.hidden_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.bfloat16())
    states = [
        torch.stack([stack.prefill(stack.new_cache(1, size), 0, embeds[:size].to(kind)) for size in range(1, 41)])
        for stack, kind in ((exact.stack, torch.float32), (native.stack, torch.float32), (halves.stack, torch.bfloat16))
    ]
    ours, theirs = ((state.float() - states[0]).std() for state in states[1:])
    assert 0 < ours < theirs


@pytest.mark.parametrize("precision", PRECISIONS)
def test_longer_rows_than_those_of_the_weight_are_refused(precision: Precision) -> None:
    """They would be written behind the memory for them."""
    layer = PackedLinear(pack(linear(WIDTH, 128).weight, precision), WIDTH)
    with pytest.raises(ValueError, match="rows of 129 numbers for a weight of 128 inputs"):
        layer(np.zeros((2, 129), np.float32))


def test_a_linear_layer_keeps_memory_for_few_rows() -> None:
    """A clip of 30 s has thousands. They are as if each came alone."""
    layer = PackedLinear(pack(linear(WIDTH, 128).weight, "fp32"), WIDTH)
    rows = np.random.default_rng(0).standard_normal((3 * MOST_ROWS + 5, 128), np.float32)
    together, places = layer(rows), [0, MOST_ROWS, len(rows) - 1]
    np.testing.assert_array_equal(together[places], np.concatenate([layer(rows[at : at + 1]) for at in places]))
    layer(rows)
    assert layer._workspace.per_thread[0].nbytes == thread_pool().threads * MOST_ROWS * 128 * 4


def test_rounding_is_what_the_bits_allow() -> None:
    weight = torch.randn(64, 300, generator=torch.Generator().manual_seed(0))
    assert torch.equal(unpack(pack(weight, "fp32"), 64, 300), weight)
    assert torch.equal(unpack(pack(weight, "bf16"), 64, 300), weight.bfloat16().float())
    error = (unpack(pack(weight, "int8"), 64, 300) - weight).abs()
    for start in (0, 128, 256):
        group = slice(start, start + 128)
        assert (error[:, group] <= weight[:, group].abs().amax(1, keepdim=True) / 127 * 0.501).all()
    for precision in PRECISIONS:
        assert (unpack(pack(torch.zeros(2, 128), precision), 2, 128) == 0).all()
    assert pack(weight, "int8").nbytes < 0.4 * pack(weight, "fp32").nbytes


def test_the_type_of_the_numbers_says_the_form() -> None:
    packed = {precision: pack(linear(WIDTH, 128).weight, precision).values.dtype for precision in PRECISIONS}
    assert len(set(packed.values())) == len(PRECISIONS)


@pytest.mark.parametrize("outputs", [1, 5, 131])
def test_bf16_numbers_take_half_the_memory_in_fp32(outputs: int, threads: int) -> None:
    weight = torch.randn(outputs, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    packed = pack(weight, "fp32")
    full = packed.widened()
    assert torch.equal(unpack(packed, outputs, 300), weight.float())
    assert packed.values.nbytes == full.values.nbytes / 2
    assert pack(weight.float(), "fp32").values.dtype == packed.values.dtype  # torch widens a checkpoint's weights
    assert pack(weight.float() * (1 + 2**-12), "fp32").values.dtype == np.float32
    rows = np.random.default_rng(0).standard_normal((21, 300), np.float32)
    for count in (1, 2, 3, 4, 7, 13, 21):
        halves, floats = (PackedLinear(each, outputs)(rows[:count]) for each in (packed, full))
        np.testing.assert_array_equal(halves, floats)


@pytest.mark.parametrize("exact", [True, False])
def test_a_stack_takes_halves_if_bf16_has_all_its_numbers(exact: bool, config: Qwen3TTSConfig) -> None:
    """One number of the last layer changes how all are stored, and no other result."""
    talker, halves = make_talker(config, 0), make_talker(config, 0)
    with torch.no_grad():
        for each in (talker, halves):
            for parameter in each.stack.parameters():
                parameter.copy_(parameter.bfloat16())
        last = talker.stack.layers[-1].mlp.down_proj.weight
        last[0, 0] = last[0, 0] if exact else 0.1
        halves.stack.layers[-1].mlp.down_proj.weight[0, 0] = last[0, 0]
    expected = halves.stack.prefill(halves.stack.new_cache(1, 9), 0, torch.ones(9, config.talker.hidden_size))
    native = native_stack(talker.stack, "fp32")
    assert {packed[0].dtype for packed in native.weights} == {np.dtype(np.int16 if exact else np.float32)}
    got = native.prefill(native.new_cache(1, 9), 0, torch.ones(9, config.talker.hidden_size))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_int4_scales_are_searched() -> None:
    weight = torch.randn(67, 300, generator=torch.Generator().manual_seed(0))
    weight[:, 5] *= 20
    weight[3, 32:64] = 0
    packed = pack(weight, "int4")
    assert packed.nbytes < 0.2 * pack(weight, "fp32").nbytes
    found, whole = (
        torch.nn.functional.pad(each, (0, 20)).view(67, 10, 32) for each in (unpack(packed, 67, 300), weight)
    )
    plain = whole.gather(-1, whole.abs().argmax(-1, keepdim=True)) / -8 + 1e-30  # clips nothing
    unsearched = (whole / plain).round().clamp(-8, 7) * plain
    error, worst = ((each - whole).square().sum(-1) for each in (found, unsearched))
    assert (error <= 1.05 * worst + 1e-6).all()  # scales are bf16
    assert (error / worst).nanmean() < 0.95
    assert (found[3, 1] == 0).all()


def product_of_tiles(tile: Any) -> Callable[..., None]:
    """The intrinsic as a function."""

    @njit
    def product(weights, groups, x, factors, out, n):  # type: ignore[no-untyped-def]
        tile(weights, groups, x, factors, out, 0, n, 0, out.shape[1])

    compiled: Callable[..., None] = product
    return compiled


def test_an_old_processor_has_the_same_int4_products(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    weights, x = rng.integers(0, 256, (WIDTH, 48), dtype=np.uint8), rng.integers(-127, 128, (4, 96), dtype=np.int8)
    weights[:4], x[0], x[1] = 255, 127, -127  # the largest sums there are
    factors = rng.standard_normal((4, 2, 3), np.float32)
    packed = Packed(weights, np.full((WIDTH, 3), 0x3F80, np.uint16))  # bf16 ones
    values = unpack(packed, WIDTH, 96).numpy() + 8
    exact = np.einsum("ogi,ngi->ogn", values.reshape(WIDTH, 3, 32), x.reshape(4, 3, 32).astype(np.float64))
    expected = (exact * factors[:, 0].T + factors[:, 1].T).sum(axis=1)
    found = []
    pairs = INSTRUCTIONS._replace(byte_dots=False)
    for instructions in (INSTRUCTIONS, pairs, pairs._replace(byte_pairs=False)):
        monkeypatch.setattr(tile_products, "INSTRUCTIONS", instructions)
        for rows in (4, 1):
            compiled = product_of_tiles(tile_products.panel_tile(1, rows, prefetch=True))  # type: ignore[no-untyped-call]
            out = np.zeros((4, WIDTH), np.float32)
            for n in range(0, 4, rows):
                compiled(*packed.arrays, x, factors.reshape(-1), out, n)
            found.append(out.T)
    np.testing.assert_allclose(found[0], expected, atol=1e-2)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_the_exponential_function() -> None:
    x = np.concatenate([np.linspace(LOWEST, HIGHEST, 400_001), [0, 1e-30]]).astype(np.float32)

    @njit
    def each(values):  # type: ignore[no-untyped-def]
        return [exponential(value) for value in values]

    exact = np.exp(x.astype(np.float64))
    assert np.abs(each(x) / exact - 1).max() < 3e-7
    beyond = each(np.float32([-1e9, 1e9, np.nan, np.inf, -np.inf]))
    np.testing.assert_allclose(beyond[:2], np.exp([LOWEST, HIGHEST], dtype=np.float64), rtol=1e-6)
    assert np.isnan(beyond[2:]).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_bad_row_is_seen_and_spoils_no_other(precision: Precision) -> None:
    layer = NativeLinear.of(linear(96, 128), precision)
    rows = torch.randn(8, 128, generator=torch.Generator().manual_seed(1))
    expected = layer(rows)
    spoilt = rows.clone()
    spoilt[2], spoilt[4, 3], spoilt[5] = torch.nan, torch.inf, 0
    result = layer(spoilt)
    good = [0, 1, 3, 6, 7]
    assert torch.equal(result[good], expected[good])
    assert not result[2].isfinite().any() and not result[4].isfinite().any()
    assert (result[5] == 0).all()


def rounded(talker: Talker, precision: Precision) -> Talker:
    """The talker that torch runs with the weights that native code has at `precision`."""
    with torch.no_grad():
        for name, module in talker.named_modules():
            if isinstance(module, nn.Linear) and "text_projection" not in name:
                kept = head_precision(precision) if "head" in name else precision
                module.weight.copy_(unpack(pack(module.weight, kept), *module.weight.shape))
        if precision != "fp32":
            table = talker.code_predictor.model.codec_embedding.weight
            table.copy_(table.bfloat16())
    return talker


def greedy(talker: Talker, config: Qwen3TTSConfig, seed: int) -> npt.NDArray[np.int32]:
    generator = Generator(talker, 1, 96)
    how = SamplingParameters(seed=0, do_sample=False, subtalker_do_sample=False)
    generator.start(0, TalkerRequest(make_prompt(config, seed, icl=seed % 2 == 1), how, FRAMES))
    return codes_of(generator, 0)


@pytest.fixture(scope="module")
def by_torch(config: Qwen3TTSConfig) -> ByTorch:
    """The talker that torch runs with the weights of a precision, and its greedy codes for prompts; computed once."""

    @cache
    def found(precision: Precision) -> tuple[Talker, list[npt.NDArray[np.int32]]]:
        talker = rounded(make_talker(config, 0), precision)
        # At int4 activations, rounded to 8 bits, change codes from the first frame on.
        return talker, [greedy(talker, config, seed) for seed in range(0 if precision == "int4" else 3)]

    return found


@pytest.mark.thorough
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_talker_is_that_with_the_rounded_weights(
    precision: Precision, config: Qwen3TTSConfig, by_torch: ByTorch, threads: int
) -> None:
    native, (reference, codes) = native_of(make_talker(config, 0), precision), by_torch(precision)
    embeds = torch.randn(20, config.talker.hidden_size, generator=torch.Generator().manual_seed(0))
    hidden = []
    for talker in (native, reference):
        cache = talker.stack.new_cache(3, 21)
        first = torch.cat(
            [talker.stack.prefill(cache, 1, embeds[:13])[None], talker.stack.prefill(cache, 1, embeds[13:], 13)[None]]
        )
        talker.stack.prefill(cache, 0, embeds[:5])
        hidden.append(torch.cat([first, talker.stack.decode(cache, [1, 0], [20, 5], embeds[:2])]))
    rounds = {"int8": 1e-3, "int4": 0.1, "bf16": 0.02 if INSTRUCTIONS.bf16_dots else 1e-5}  # activations
    torch.testing.assert_close(*hidden, rtol=0, atol=rounds.get(precision, 1e-5))
    same = [(greedy(native, config, s) == each).all(1).cumprod().sum() for s, each in enumerate(codes)]
    # frames before the first other code
    assert sum(same) >= (0.5 if rounds.get(precision, 0) > 1e-5 else 1.0) * len(codes) * FRAMES, same


@pytest.mark.parametrize("precision", PRECISIONS)
def test_streams_do_not_know_of_each_other(precision: Precision, config: Qwen3TTSConfig, threads: int) -> None:
    talker = native_of(make_talker(config, 3), precision)
    cases = [(make_prompt(config, i, icl=i % 2 == 1), SamplingParameters(seed=i), 8 + i) for i in range(5)]
    together = Generator(talker, 5, 96)
    for slot, case in enumerate(cases):
        together.start(slot, TalkerRequest(*case))
    codes: list[list[npt.NDArray[np.int32] | None]] = [[] for _ in cases]
    live = list(range(5))
    while live:
        frames = dict(zip(live, together.step(live), strict=True))
        for slot, frame in frames.items():
            codes[slot].append(frame.payload)
        live = [slot for slot, frame in frames.items() if not frame.finish]
    for slot, case in enumerate(cases):
        alone = Generator(talker, 1, 96)
        alone.start(0, TalkerRequest(*case))
        np.testing.assert_array_equal(np.stack([c for c in codes[slot] if c is not None]), codes_of(alone, 0))


def test_any_number_of_threads_computes_the_same(config: Qwen3TTSConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    embeds = torch.randn(6, config.talker.hidden_size, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("voice_clone.native.thread_pool.MIN_PARALLEL_MULTIPLICATIONS", 0)
    results = []
    for count in (1, 2, 3):
        monkeypatch.setattr("voice_clone.native.thread_pool._pool", ThreadPool(count))
        talker = make_talker(config, 0)
        stack = native_stack(talker.stack, "int8")
        cache = stack.new_cache(1, 300)
        for start in range(0, 300, 6):
            positions = torch.arange(start, start + 6)
            out: Tensor = stack.run(embeds, cache, torch.zeros_like(positions), positions)
        results.append(out)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("precision", ["auto", *PRECISIONS])
def test_precision_is_a_setting(precision: str, checkpoint_folder: CheckpointFactory) -> None:
    environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint_folder("tiny", 0)), "VOICE_CLONE_DEVICE": "cpu"}
    talker = talker_stage.load_network(Settings({}, {**environ, "VOICE_CLONE_PRECISION": precision}))
    exact = talker_stage.load_network(Settings({}, environ))
    embeds = torch.randn(12, exact.config.talker.hidden_size, generator=torch.Generator().manual_seed(0))
    first, second = (each.stack.prefill(each.stack.new_cache(1, 12), 0, embeds) for each in (exact, talker))
    difference = (first - second).abs().max() / first.std()
    if precision in ("int8", "int4"):
        assert 1e-4 < difference < {"int8": 0.3, "int4": 1.0}[precision]
    else:  # the checkpoint is bf16
        assert difference < (0.02 if precision == "bf16" and INSTRUCTIONS.bf16_dots else 1e-5)


def test_a_wrong_precision_is_refused(checkpoint_folder: CheckpointFactory) -> None:
    environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint_folder("tiny", 0))}
    with pytest.raises(InvalidArgument, match=r"precision.*fp32"):
        talker_stage.load_network(Settings({}, {**environ, "VOICE_CLONE_PRECISION": "int3"}))


def test_fused_layers_have_the_official_names(config: Qwen3TTSConfig, tmp_path: Path) -> None:
    talker = make_talker(config, 0)
    state = talker.state_dict()
    prefix = "model.layers.1.self_attn."
    assert {name.removeprefix(prefix) for name in state if name.startswith(prefix)} == {
        *(f"{part}_proj.weight" for part in "qkvo"),
        "q_norm.weight",
        "k_norm.weight",
    }
    assert state[f"{prefix}q_proj.weight"].shape == (64, 64) and state[f"{prefix}k_proj.weight"].shape == (32, 64)
    other = make_talker(config, 1)
    other.load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items())
    del state[f"{prefix}v_proj.weight"]
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict(state)
