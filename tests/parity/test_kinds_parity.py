"""CustomVoice and VoiceDesign: from a request to the waveform, ours against the official package on the same folder."""

from __future__ import annotations

import itertools
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.families.factories import CheckpointFactory
from tests.support.families.qwen3_bare import BareQwen3
from tests.support.official.official_talker import our_draws
from tests.support.oracles.qwen_tts import load_official, spoken
from tools.families.qwen3_tts.checkpoint_config import DIALECTS, SPEAKERS
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint, make_endless
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.speech import SpeechRequest

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

FRAMES = 60
NEAR, CUT = 1e-5, 2e-6  # as of test_sampled_parity
TEXT = "Zwei Boote, two boats \u2014 \u4e24\u53ea\u8239, and 3 more; all came home."
STYLE = "\nSpeak slowly, with a sad voice. \u7528\u7279\u522b\u6124\u6012\u7684\u8bed\u6c14\u8bf4"
CUSTOM = [  # speaker, language
    ("vivian", "Auto"),
    ("dylan", "Auto"),
    ("dylan", "Chinese"),
    ("eric", "Chinese"),
    ("eric", "English"),
    ("ono_anna", "Japanese"),
]
CASES: list[tuple[str | None, str, str, bool]] = [
    *((speaker, language, "", bool(index % 2)) for index, (speaker, language) in enumerate(CUSTOM)),
    *((speaker, language, STYLE, not index % 2) for index, (speaker, language) in enumerate(CUSTOM)),
    (None, "Auto", STYLE, True),
    (None, "German", STYLE, False),
    (None, "English", "", True),
    (None, "Auto", "", False),
]


@lru_cache(maxsize=2)
def load(folder: Path) -> tuple[BareQwen3, Any]:
    return BareQwen3(folder), load_official(folder)


def official(
    model: Any, speaker: str | None, language: str, instruct: str, non_streaming: bool, **sampling: Any
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Waveform and codes of the official package."""
    given = {"text": TEXT, "language": language, "instruct": instruct, "non_streaming_mode": non_streaming, **sampling}
    if speaker is None:
        return spoken(model, model.generate_voice_design, FRAMES, **given)
    return spoken(model, model.generate_custom_voice, FRAMES, speaker=speaker.title(), **given)


def request_of(speaker: str | None, language: str, instruct: str) -> SpeechRequest:
    return SpeechRequest(TEXT, voice=speaker, language=language, options={"instruct": instruct}, voiceless=True)


def check(folder: Path, speaker: str | None, language: str, instruct: str, non_streaming: bool) -> np.ndarray[Any, Any]:
    ours, model = load(folder)
    greedy = {"do_sample": False, "subtalker_dosample": False}
    expected, expected_codes = official(model, speaker, language, instruct, non_streaming, **greedy)
    prompt = ours.prompt_of(request_of(speaker, language, instruct), non_streaming)
    assert prompt.mode == ("design" if speaker is None else "preset") and bool(len(prompt.instruct_ids)) == bool(
        instruct
    )
    sampling = SamplingParameters.from_defaults(ours.config.sampling, seed=0)
    sampling = SamplingParameters(**{**vars(sampling), "do_sample": False, "subtalker_do_sample": False})
    codes = ours.codes(prompt, FRAMES, sampling)
    np.testing.assert_array_equal(codes, expected_codes)
    assert len(codes) == FRAMES and len(np.unique(codes)) > 100
    rms = float(np.sqrt((expected**2).mean()))
    assert rms > 0.01, "a comparison of silence proves nothing"
    np.testing.assert_allclose(ours.waveform(prompt, codes, 7), expected, atol=1e-4 * rms)
    return codes


def shape_of(speaker: str | None, size: str = "tiny") -> str:
    return f"{size}-{'design' if speaker is None else 'custom'}"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.parametrize(("speaker", "language", "instruct", "non_streaming"), CASES)
def test_greedy(
    checkpoint_folder: CheckpointFactory,
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    speaker: str | None,
    language: str,
    instruct: str,
    non_streaming: bool,
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"{shape_of(speaker)}-{seed}"
    if not folder.exists():
        make_endless(checkpoint_folder(shape_of(speaker), seed), folder)
    check(folder, speaker, language, instruct, non_streaming)


def test_each_speaker_and_each_dialect_is_another_prompt(checkpoint_folder: CheckpointFactory) -> None:
    ours = BareQwen3(checkpoint_folder("tiny-custom", 0))
    said: set[tuple[Any, ...]] = set()
    for name, language in itertools.product(SPEAKERS, ("Auto", "Chinese", "English")):
        prompt = ours.prompt_of(request_of(name, language, ""))
        dialect = DIALECTS.get(name) if language != "English" else None
        expected = {"Auto": None, "Chinese": 2055, "English": 2050}[language]
        if dialect is not None:
            expected = ours.config.talker.codec_language_id[dialect]
        assert prompt.speaker_id == SPEAKERS[name] and prompt.language_id == expected
        said.add((prompt.speaker_id, prompt.language_id))
    assert len(said) == 3 * len(SPEAKERS) - len(DIALECTS)


@pytest.mark.parametrize(
    ("speaker", "options"),
    [
        ("dylan", {}),
        (None, {}),
        pytest.param(
            "vivian", {"temperature": 0.7, "top_k": 0, "top_p": 0.6, "subtalker_top_k": 9}, marks=pytest.mark.long
        ),
        pytest.param(None, {"subtalker_temperature": 1.6, "subtalker_top_k": 0}, marks=pytest.mark.long),
    ],
)
def test_sampled(
    checkpoint_folder: CheckpointFactory, tmp_path: Path, speaker: str | None, options: dict[str, Any]
) -> None:
    ours, model = load(make_endless(checkpoint_folder(shape_of(speaker), 0), tmp_path / "endless"))
    prompt = ours.prompt_of(request_of(speaker, "Auto", STYLE), non_streaming=True)
    for seed in itertools.count(10**12):  # the first one at which rounding decides nothing
        with our_draws(ours.config, seed, NEAR) as draws:
            _, expected = official(model, speaker, "Auto", STYLE, True, **options)
            sampling = vars(SamplingParameters.from_defaults(ours.config.sampling, seed=seed)) | options
            codes = ours.codes(prompt, FRAMES, SamplingParameters(**sampling)) if draws.cut > CUT else expected
        if draws.cut > CUT and not draws.close_call(codes, expected, CUT):
            break
    assert draws.frames >= FRAMES, "the official package drew elsewhere"
    np.testing.assert_array_equal(codes, expected)


@pytest.mark.long
@pytest.mark.parametrize(("size", "speaker"), [("0.6b", "dylan"), ("1.7b", "eric"), ("1.7b", None)])
def test_released_shapes(tmp_path: Path, size: str, speaker: str | None) -> None:
    load.cache_clear()
    make_checkpoint(shape_of(speaker, size), 0, tmp_path / "checkpoint")
    folder = make_endless(tmp_path / "checkpoint", tmp_path / "endless")
    with torch.inference_mode():
        check(folder, speaker, "Auto", "" if size == "0.6b" else STYLE, True)
    load.cache_clear()
