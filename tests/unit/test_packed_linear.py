"""Linear layers with 16- and 8-bit weights, and talkers made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import CheckpointFactory
from tests.talkers import codes_of, make_prompt, make_talker, read_config
from voice_clone.errors import InvalidArgument
from voice_clone.layers.packed_linear import HalfLinear, Int8Linear, Packing, pack, quantise
from voice_clone.qwen3_tts import stages
from voice_clone.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.qwen3_tts.generator import Generator
from voice_clone.qwen3_tts.sampling import SamplingParameters
from voice_clone.qwen3_tts.talker import Talker
from voice_clone.qwen3_tts.talker_request import TalkerRequest
from voice_clone.settings import Settings

PACKINGS: tuple[Packing, ...] = ("fp16", "int8")
FRAMES = 24


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSConfig:
    return read_config("projected", tmp_path_factory.mktemp("checkpoint") / "folder")


def rounded(weight: Tensor, packing: Packing) -> Tensor:
    """The weights that a packed layer stands for."""
    if packing == "fp16":
        return weight.half().float()
    values, scales = quantise(weight)
    return values * scales[:, None]


def kind(packing: Packing) -> Callable[[Tensor, Tensor | None], nn.Module]:
    return {"fp16": HalfLinear, "int8": Int8Linear}[packing]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("shape", [(48, 64), (130, 1000)])
@pytest.mark.parametrize("biased", [False, True])
def test_it_is_the_product_with_rounded_weights(packing: Packing, shape: tuple[int, int], biased: bool) -> None:
    outputs, inputs = shape
    generator = torch.Generator().manual_seed(outputs)
    weight = torch.randn(shape, generator=generator) * inputs**-0.5
    bias = torch.randn(outputs, generator=generator) if biased else None
    x = torch.randn(2, 5, inputs, generator=generator) * torch.logspace(-4, 4, 5)[:, None]  # rows of all sizes
    x[..., 7] *= 100  # with outliers, as activations have them
    got = kind(packing)(weight, bias)(x)
    expected = nn.functional.linear(x.double(), rounded(weight, packing).double())
    scale = expected.std(dim=-1, keepdim=True)
    if bias is not None:
        expected += bias
    assert got.shape == (2, 5, outputs) and got.dtype == torch.float32
    assert ((got - expected).abs() / scale).max() < (1e-5 if packing == "fp16" else 5e-3)


@pytest.mark.parametrize("packing", PACKINGS)
def test_rounding_is_what_the_bits_allow(packing: Packing) -> None:
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    error = (rounded(weight, packing) - weight).abs()
    if packing == "fp16":
        assert (error <= weight.abs() * 2**-11).all()
    else:
        assert (error <= weight.abs().amax(1, keepdim=True) / 127 * 0.501).all()
    half = weight.bfloat16().float()  # a bf16 checkpoint loses nothing in fp16
    assert torch.equal(rounded(half, "fp16"), half)


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_do_not_touch_each_other(packing: Packing) -> None:
    generator = torch.Generator().manual_seed(1)
    layer = kind(packing)(torch.randn(96, 128, generator=generator), None)
    rows = torch.randn(8, 128, generator=generator)
    alone = torch.cat([layer(row[None]) for row in rows])
    assert torch.equal(layer(rows), alone)
    spoilt = rows.clone()
    spoilt[2], spoilt[4], spoilt[5], spoilt[6] = torch.nan, torch.inf, 0, 1e30
    result = layer(spoilt)
    for row in (0, 1, 3, 7):
        assert torch.equal(result[row], alone[row])
    assert not result[2].isfinite().any() and not result[4].isfinite().any()  # seen, not hidden
    assert (result[5] == 0).all()


def greedy(talker: Talker, config: Qwen3TTSConfig, seed: int) -> npt.NDArray[np.int32]:
    generator = Generator(talker, config, 1, 96)
    how = SamplingParameters(seed=0, do_sample=False, subtalker_do_sample=False)
    generator.start(0, TalkerRequest(make_prompt(config, seed, icl=seed % 2 == 1), how, FRAMES))
    return codes_of(generator, 0)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_packed_talker_is_the_talker_with_rounded_weights(packing: Packing, config: Qwen3TTSConfig) -> None:
    packed, reference = make_talker(config, 0), make_talker(config, 0)
    with torch.no_grad():
        for module in reference.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_(rounded(module.weight, packing))
    pack(packed, packing)
    assert not any(isinstance(module, nn.Linear) for module in packed.modules())
    agreement = [
        (greedy(packed, config, seed) == greedy(reference, config, seed)).all(axis=1).cumprod().sum()
        for seed in range(4)
    ]
    assert sum(agreement) >= 0.75 * 4 * FRAMES  # frames before the first other code

    embeds = torch.randn(20, config.talker.hidden_size, generator=torch.Generator().manual_seed(0))
    hidden = [talker.prefill(talker.new_cache(1, 20), 0, embeds) for talker in (packed, reference)]
    torch.testing.assert_close(*hidden, rtol=0, atol=1e-4 if packing == "fp16" else 2e-2)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_streams_of_a_packed_talker_are_apart(packing: Packing, deterministic: bool, config: Qwen3TTSConfig) -> None:
    talker = make_talker(config, 3)
    pack(talker, packing)
    cases = [(make_prompt(config, i, icl=i % 2 == 1), SamplingParameters(seed=i), 8 + i) for i in range(4)]
    together = Generator(talker, config, 4, 96, deterministic)
    codes: dict[int, list[npt.NDArray[Any]]] = {}
    for slot, case in enumerate(cases):
        together.start(slot, TalkerRequest(*case))
        codes[slot] = []
    live = [0, 1, 2, 3]
    while live:
        frames = dict(zip(live, together.step(live), strict=True))
        for slot, frame in frames.items():
            assert frame.codes is not None
            codes[slot].append(frame.codes)
        live = [slot for slot, frame in frames.items() if not frame.finish]
    for slot, case in enumerate(cases):
        alone = Generator(talker, config, 4, 96, deterministic)
        alone.start(0, TalkerRequest(*case))
        np.testing.assert_array_equal(np.stack(codes[slot]), codes_of(alone, 0))


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_precision_is_a_setting(precision: str, checkpoint: CheckpointFactory) -> None:
    folder = checkpoint("tiny")
    environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(folder), "VOICE_CLONE_DEVICE": "cpu"}
    exact, config = stages.load_talker(Settings({}, environ))
    reduced, _ = stages.load_talker(Settings({}, {**environ, "VOICE_CLONE_PRECISION": precision}))
    assert isinstance(exact.codec_head, nn.Linear) and not isinstance(reduced.codec_head, nn.Linear)
    embeds = torch.randn(12, config.talker.hidden_size, generator=torch.Generator().manual_seed(0))
    first, second = (talker.prefill(talker.new_cache(1, 12), 0, embeds) for talker in (exact, reduced))
    assert (first - second).abs().max() < (1e-3 if precision == "bf16" else 0.3) * first.std()
    with pytest.raises(InvalidArgument, match="precision"):
        stages.load_talker(Settings({}, {**environ, "VOICE_CLONE_PRECISION": "int3"}))
