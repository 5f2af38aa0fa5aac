"""The code predictor's loop in native code: its draws are the sampler's, its codes those of one codebook at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.families.talkers import make_sampler, make_talker, native_of, read_config
from voice_clone.autoregressive.native_predictor import NativePredictor
from voice_clone.autoregressive.predictor_by_step import complete_by_steps, frame_cache
from voice_clone.autoregressive.samplers import Draw
from voice_clone.autoregressive.sampling import CodeDraws, Filters
from voice_clone.native.kernels.transformer.draw import draw, is_finite
from voice_clone.native.thread_pool import ThreadPool
from voice_clone.settings import PRECISIONS, Precision

pytestmark = pytest.mark.thorough

KNOBS = [
    (False, 1.0, 0, 1.0),
    (True, 0.9, 50, 1.0),
    (True, 1.0, 0, 1.0),
    (True, 1e-30, 0, 0.5),
    (True, 0.7, 1, 0.3),
    (True, 1.3, 7, 0.8),
    (True, 1.0, 5000, 0.95),
    (True, 1e9, 0, 1e-9),
    (True, 0.5, 2048, 0.999),
]


def drawn(logits: Tensor, knobs: Tensor, uniform: float) -> int:
    size = logits.shape[0]
    memory = np.empty(size, np.int32), np.empty(size, np.float32)
    return int(draw(logits.numpy(), knobs.numpy(), uniform, *memory))


@pytest.mark.parametrize("knobs", KNOBS)
@pytest.mark.parametrize("spread", [0.01, 3.0, 40.0])
def test_a_draw_is_the_sampler_s(knobs: tuple[bool, float, int, float], spread: float) -> None:
    generator = torch.Generator().manual_seed(int(spread * 100))
    logits = spread * torch.randn(200, 2048, generator=generator)
    uniform = torch.rand(200, generator=generator, dtype=torch.float64)
    uniform[:2] = torch.tensor([0.0, 1 - 2**-53])
    sampler = make_sampler([knobs] * len(logits))
    expected = sampler(logits, uniform)
    row = torch.tensor([knobs], dtype=torch.float64).float()[0]
    found = torch.tensor([drawn(each, row, float(u)) for each, u in zip(logits, uniform, strict=True)])
    # Where the draw falls between two codes, the last bit of a sum decides.
    assert (found != expected).sum() <= (1 if knobs[0] else 0)


def test_top_k_keeps_ties_of_the_last() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0, 2.0])
    knobs = torch.tensor([1.0, 1.0, 2.0, 1.0])
    assert {drawn(logits, knobs, u) for u in np.linspace(0, 0.999, 50)} == {1, 2, 3, 5}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("knobs", KNOBS)
def test_values_that_are_not_finite_are_detected_and_give_some_code(
    bad: float, knobs: tuple[bool, float, int, float]
) -> None:
    logits = torch.randn(300, generator=torch.Generator().manual_seed(0))
    assert is_finite(logits.numpy()) and is_finite(np.float32([3e38, -3e38, 0]))
    for place in (0, 299, slice(None)):
        spoilt = logits.clone()
        spoilt[place] = bad
        assert not is_finite(spoilt.numpy())
        assert all(0 <= drawn(spoilt, torch.tensor(knobs).float(), u) < 300 for u in (0.0, 0.5, 0.999))


def frames(predictor: NativePredictor, inputs: tuple[Any, ...], knobs: np.ndarray[Any, Any], whole: bool) -> Any:
    """Codes and which of them are finite, by one call of native code or codebook by codebook."""
    cache, hidden, code0, embed0, uniform = inputs
    draws = CodeDraws(torch.from_numpy(knobs).float(), Filters.of(knobs), uniform)
    if whole:
        return predictor.complete(cache, hidden, code0, embed0, draws)
    choose = Draw(draws)
    return complete_by_steps(predictor, cache, hidden, code0, embed0, choose), choose.finite()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", ["projected", "equal"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_loop_makes_the_codes_of_single_steps(
    precision: Precision, shape: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voice_clone.native.thread_pool._pool", ThreadPool(threads))
    monkeypatch.setattr("voice_clone.native.thread_pool.MIN_PARALLEL_MULTIPLICATIONS", 0)
    config = read_config(shape, tmp_path / "checkpoint")
    talker = native_of(make_talker(config, 5), precision)
    predictor = talker.head.predictor
    assert isinstance(predictor, NativePredictor)
    cache, generator = frame_cache(predictor, 9), torch.Generator().manual_seed(1)
    for count in (1, 9, 4, 1):
        hidden = torch.randn(count, config.talker.hidden_size, generator=generator)
        code0 = torch.randint(2048, (count,), generator=generator)
        embed0 = torch.from_numpy(talker.embed_codec_tokens(code0.numpy()))
        uniform = torch.rand(count, 16, generator=generator, dtype=torch.float64)
        inputs = cache, hidden, code0, embed0, uniform
        knobs = np.array([KNOBS[index % len(KNOBS)] for index in range(count)], np.float64)
        one_by_one = frames(predictor, inputs, knobs, whole=False)
        for got, expected in zip(frames(predictor, inputs, knobs, whole=True), one_by_one, strict=True):
            assert torch.equal(got, expected)
        assert torch.equal(one_by_one[0][:, 0], code0) and one_by_one[1].all()
        spoilt = hidden.clone()
        spoilt[0] = torch.nan
        codes, finite = frames(predictor, (cache, spoilt, *inputs[2:]), knobs, whole=True)
        assert not finite[0] and finite[1:].all() and torch.equal(codes[1:], one_by_one[0][1:])
        assert ((codes >= 0) & (codes < 2048)).all()


@pytest.mark.parametrize(
    "other", ["lm_head", "codec_embedding", "small_to_mtp", "layers.0.mlp", "model.codec_embedding"]
)
def test_fp32_parts_have_one_form(other: str, tmp_path: Path) -> None:
    """Most checkpoints have all numbers in bf16. Where a part has others, native code takes all parts as float32."""
    config = read_config("projected", tmp_path / "checkpoint")
    talker = make_talker(config, 5)
    kinds = []
    for changed in (False, True):
        with torch.no_grad():
            for name, weight in talker.named_parameters():
                weight.copy_(weight.bfloat16())
                if changed and other in name:
                    weight.mul_(1.0001)
        native = native_of(talker, "fp32")
        predictor = native.head.predictor
        assert isinstance(predictor, NativePredictor)
        kinds.append({each[0].dtype for each in predictor.stack.weights} | {predictor.lm_head[0].packed.values.dtype})
        assert predictor.tables.dtype == (np.float32 if changed else np.uint16)
        codes = torch.randint(0, 2048, (3, config.talker.num_code_groups)).numpy()
        expected = talker.embed_frames(torch.from_numpy(codes)).detach().numpy()
        assert np.allclose(native.embed_frames(codes), expected, atol=1e-5)
    assert kinds == [{np.dtype(np.int16)}, {np.dtype(np.float32)}]
