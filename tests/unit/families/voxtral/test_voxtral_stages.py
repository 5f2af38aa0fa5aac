"""The stages of Voxtral TTS: encoder weights, prompts that are refused, and noise."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.families.voxtral import make_voxtral
from tools.families.voxtral.checkpoint_maker import make_checkpoint
from voice_clone.autoregressive.philox import NormalDraws
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.families.voxtral.config import MODEL, NO_ENCODER, has_encoder
from voice_clone.families.voxtral.encoder import VoxtralEncoder, load_encoder
from voice_clone.families.voxtral.prompt import CODES, Prompt, VoxtralPrompt, load_prompt
from voice_clone.families.voxtral.talker import VoxtralTalker, load_talker
from voice_clone.settings import Settings
from voice_clone.speech import SpeechRequest
from voice_clone.stages.protocols import Arrays

pytestmark = pytest.mark.thorough

FRAMES = 12


def settings(folder: Path, **more: str) -> Settings:
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", "MAX_LENGTH": "256", "MAX_STREAMS": "3", **more}
    return Settings({}, {f"VOICE_CLONE_{name}": value for name, value in given.items()}, "voxtral")


@pytest.fixture(scope="module")
def presets_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxtral(tmp_path_factory.mktemp("voxtral") / "checkpoint")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxtral(tmp_path_factory.mktemp("voxtral") / "checkpoint", "tiny")


@pytest.fixture(scope="module")
def prompt(folder: Path) -> VoxtralPrompt:
    return load_prompt(settings(folder))


@pytest.fixture(scope="module")
def talker(folder: Path) -> VoxtralTalker:
    made = load_talker(settings(folder))
    made.source.prepare()
    return made


def tensors(prompt: VoxtralPrompt, text: str = "Good morning.", voice: str = "casual_male") -> Arrays:
    speech = SpeechRequest(text, voice=voice)
    return prompt.prepare(speech, prompt.draft(speech), None).tensors


def request(talker: VoxtralTalker, given: Arrays, seed: int, **options: Any) -> TalkerRequest[Prompt]:
    plan = talker.plan(given, {"seed": seed, "max_frames": FRAMES}, options)
    return plan.request


def test_without_encoder_weights_cloning_is_unsupported(presets_only: Path) -> None:
    encoder = load_encoder(settings(presets_only))
    assert encoder.modes == {"icl": NO_ENCODER}
    [limit] = encoder.limits("icl").values()
    assert limit.rows == (2, 1 + encoder.max_frames), "the end of a clip is a row, too"
    described = encoder.encode(np.zeros(0, np.float32), None)
    assert described[CODES].shape == (0, 37) and described[CODES].dtype == np.uint16


def test_the_end_of_a_clip_is_none_of_its_frames(presets_only: Path) -> None:
    config, clip = load_encoder(settings(presets_only)).config, np.zeros(1, np.float32)
    for frames, taken in ((3, True), (4, False)):
        network = SimpleNamespace(encode=lambda _, rows=frames + 1: torch.zeros(rows, 37))
        with nullcontext() if taken else pytest.raises(Unsupported):
            VoxtralEncoder(network, config, "", max_frames=3).encode(clip, "icl")


@pytest.mark.parametrize(
    "asked", [{"speaker_embedding": np.ones(64, np.float32)}, {"voice": "casual_male", "x_vector_only": True}]
)
def test_an_embedding_is_refused_with_what_would_be_right(
    presets_only: Path, prompt: VoxtralPrompt, asked: dict[str, Any]
) -> None:
    """A clip only where there are encoder weights."""
    with pytest.raises(Unsupported, match="give a voice or reference_audio"):
        prompt.draft(SpeechRequest("Good morning.", **asked))
    with pytest.raises(Unsupported) as refused:
        load_prompt(settings(presets_only)).draft(SpeechRequest("Good morning.", **asked))
    assert str(refused.value) == NO_ENCODER


def test_encoder_weights_are_found_in_shards(tmp_path: Path) -> None:
    for shape, found in (("tiny", True), ("tiny-presets", False)):
        make_checkpoint(shape, 0, tmp_path / shape, shards=3)
        assert not (tmp_path / shape / f"{MODEL}.safetensors").exists()
        assert has_encoder(tmp_path / shape) == found


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("preset", np.array([20], np.int32), "preset must lie in -1..19"),
        ("preset", np.array([-1], np.int32), "either a preset or codec_codes"),
        ("preset", np.array([1, 2], np.int32), r"preset must be INT32 \[1\]"),
        (CODES, np.zeros((3, 37), np.uint16), "either a preset or codec_codes"),
        ("before_voice", np.zeros(0, np.int32), "before_voice must be INT32"),
    ],
)
def test_prompts_that_are_refused(
    talker: VoxtralTalker, prompt: VoxtralPrompt, name: str, value: NDArray[Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        request(talker, {**tensors(prompt), name: value}, 1)


def test_codes_beyond_a_codebook_are_refused(talker: VoxtralTalker, prompt: VoxtralPrompt) -> None:
    given = {**tensors(prompt), "preset": np.array([-1], np.int32)}
    ids = np.full((4, 37), 22, np.uint16)
    request(talker, {**given, CODES: ids}, 1)
    ids[2, 5] = 23
    with pytest.raises(InvalidArgument, match=r"codec_codes must lie in 0..22 or more, by codebook"):
        request(talker, {**given, CODES: ids}, 1)


def test_noise_is_normal_and_that_of_its_seed() -> None:
    draws = np.concatenate([NormalDraws(seed, 36).of(frame) for seed in range(40) for frame in range(40)])
    assert np.isfinite(draws).all()
    assert abs(draws.mean()) < 0.02 and abs(draws.std() - 1) < 0.02
    np.testing.assert_array_equal(NormalDraws(5, 36).of(33), NormalDraws(5, 36).of(33))
    assert len(np.unique(draws)) == draws.size
