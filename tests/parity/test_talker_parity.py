"""Speaker encoder, talker, code predictor and sampling against the official package, on random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.families.talkers import (
    LANGUAGES,
    SHAPES,
    make_prompt,
    make_restless,
    make_sampler,
)
from tests.support.official.official_talker import Pair, modeling
from tests.support.oracles.packages import quiet
from voice_clone.autoregressive.samplers import penalise
from voice_clone.families.qwen3_tts.networks.native_speaker_encoder import NativeSpeakerEncoder
from voice_clone.families.qwen3_tts.networks.speaker_clip import mel_filterbank
from voice_clone.families.qwen3_tts.networks.speaker_encoder import log_mel
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

FRAMES = 41
LAYOUTS = {
    "x_vector": {"icl": False, "non_streaming": False},
    "x_vector non-streaming": {"icl": False, "non_streaming": True},
    "icl": {"icl": True, "non_streaming": False},
    "icl non-streaming": {"icl": True, "non_streaming": True},
}
LANGUAGE_CHOICE = [None, *LANGUAGES]


def greedy(repetition_penalty: float) -> SamplingParameters:
    return SamplingParameters(seed=0, do_sample=False, subtalker_do_sample=False, repetition_penalty=repetition_penalty)


def official(pair: Pair, prompt: Prompt, language: str | None, repetition_penalty: float) -> np.ndarray[Any, Any]:
    """Official greedy codes [frames, 16]."""
    options = {"do_sample": False, "subtalker_dosample": False, "repetition_penalty": repetition_penalty}
    return pair.official_codes(prompt, language, FRAMES, **options)


def ours(pair: Pair, prompt: Prompt, repetition_penalty: float, native: bool = False) -> np.ndarray[Any, Any]:
    """Our greedy codes."""
    return pair.our_codes(prompt, greedy(repetition_penalty), FRAMES, native)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((shape, seed), marks=pytest.mark.long if seed else [], id=f"{shape}-{seed}")
        for shape in SHAPES
        for seed in range(2)
    ],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    shape, seed = request.param
    return Pair(shape, seed, tmp_path_factory.mktemp("checkpoint") / "folder")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy_codes(pair: Pair, layout: str, request: pytest.FixtureRequest) -> None:
    shape, seed = request.node.callspec.params["pair"]
    # Over shapes and seeds each layout meets every language and Auto.
    language = LANGUAGE_CHOICE[(seed + 2 * list(SHAPES).index(shape) + list(LAYOUTS).index(layout)) % 4]
    prompt = make_prompt(pair.config, seed, language=language, **LAYOUTS[layout])
    expected = official(pair, prompt, language, 1.05)
    assert expected.shape == (FRAMES, 16)
    assert len(np.unique(expected)) > 200 and len(np.unique(expected[:, 0])) > 20  # else the comparison is empty
    np.testing.assert_array_equal(ours(pair, prompt, 1.05), expected)
    np.testing.assert_array_equal(ours(pair, prompt, 1.05, native=True), expected)


def test_repetition_penalty(pair: Pair) -> None:
    prompt = make_prompt(pair.config, 7)
    favoured = ours(pair, prompt, 0.7)  # below 1 it favours what has been used: a difference is certain
    assert len(set(favoured[:, 0])) < len(set(ours(pair, prompt, 1.5)[:, 0]))
    np.testing.assert_array_equal(favoured, official(pair, prompt, None, 0.7))


def test_end_of_speech(tmp_path: Path) -> None:
    """The model ends both at the same frame, and never before the third."""
    lengths = set()
    for seed in range(3):
        pair = Pair("projected", seed, tmp_path / str(seed))
        make_restless(pair.official.talker.codec_head, seed)
        pair.sync()
        for case in range(4):
            prompt = make_prompt(pair.config, case)
            codes = ours(pair, prompt, 1.05)
            np.testing.assert_array_equal(codes, official(pair, prompt, None, 1.05))
            lengths.add(len(codes))
    assert min(lengths) == 2 and len(lengths) > 1 and max(lengths) < FRAMES


@pytest.mark.parametrize("samples", [24000, 48077, 100001])
def test_speaker_embedding(pair: Pair, samples: int) -> None:
    rng = np.random.default_rng(samples)
    time = np.arange(samples) / 24000
    tone = 0.3 * np.sin(2 * np.pi * 220 * time * (1 + 0.1 * np.sin(7 * time)))
    waveform = (tone + 0.05 * rng.standard_normal(samples)).astype(np.float32)
    with quiet():
        expected = pair.official.extract_speaker_embedding(waveform, 24000)
    assert expected.std() > 0.01
    ours = pair.speaker_encoder.embed(torch.from_numpy(waveform))
    assert ours.shape == (pair.config.talker.hidden_size,) and ours.dtype == torch.float32
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    weights = pair.speaker_encoder.state_dict()
    native = NativeSpeakerEncoder(pair.config.speaker_encoder, lambda name, shape: weights[name])
    np.testing.assert_allclose(native.embed(waveform), expected, rtol=0, atol=1e-5)


def test_log_mel() -> None:
    import librosa

    filters = librosa.filters.mel(sr=24000, n_fft=1024, n_mels=128, fmin=0, fmax=12000)
    np.testing.assert_allclose(mel_filterbank(128, 24000), filters, rtol=1e-5, atol=1e-9)
    waveform = 0.3 * torch.randn(30000, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)
    expected = modeling().mel_spectrogram(waveform[None], 1024, 128, 24000, 256, 1024, 0, 12000)[0].T
    torch.testing.assert_close(log_mel(waveform, 128, 24000), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("temperature, top_k, top_p", [(0.9, 50, 1.0), (1.3, 0, 0.8), (0.6, 12, 0.7), (1.0, 0, 1.0)])
def test_sampled_probabilities(temperature: float, top_k: int, top_p: float) -> None:
    """On an even grid of uniforms, each code is drawn for the share that `generate`'s processors give it."""
    import transformers

    generation: Any = transformers.generation
    torch.manual_seed(top_k)
    logits = 2 * torch.randn(1, 200)
    used = torch.tensor([[3, 5, 8, 8]])
    processors = [generation.RepetitionPenaltyLogitsProcessor(penalty=1.7)]
    processors.append(generation.TemperatureLogitsWarper(temperature))
    if top_k:
        processors.append(generation.TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(generation.TopPLogitsWarper(top_p))
    expected = generation.LogitsProcessorList(processors)(used, logits.clone()).softmax(-1)[0]

    points = 20000
    uniform = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    mask = torch.zeros(1, 200, dtype=torch.bool)
    mask[0, used[0]] = True
    sampler = make_sampler([(True, temperature, top_k, top_p)] * points)
    scores = penalise(logits, mask, torch.tensor([[1.7]])).expand(points, -1)
    share = torch.bincount(sampler(scores, uniform), minlength=200) / points
    torch.testing.assert_close(share, expected, rtol=0, atol=2 / points)
    assert (share[expected == 0] == 0).all()
