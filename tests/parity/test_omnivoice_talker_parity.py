"""OmniVoice's talker against the official code: equal codes, alone, in company, in chunks. Random weights, fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.families.omnivoice_talkers import BareTalker, make_omnivoice_talker, some_voice
from tests.support.oracles.omnivoice import OfficialTalker
from voice_clone.families.omnivoice.chunks import with_end
from voice_clone.families.omnivoice.config import CODEC_CODES
from voice_clone.speech import ResolvedVoice

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

SEEDS = (5, 2**63 + 11, 0, 77)
CONFIGS: dict[str, dict[str, Any]] = {
    "as official": {"num_step": 12},
    "no guidance": {"num_step": 7, "guidance_scale": 0.0},
    "classes are drawn": {"num_step": 5, "class_temperature": 0.7},
    "no draws": {"num_step": 32, "position_temperature": 0.0, "t_shift": 0.5, "layer_penalty_factor": 1.5},
}
# Text, options and language of each request; with a voice or without, of 33, 61, 7 and 1 frames.
REQUESTS: list[tuple[str, dict[str, Any], str | None]] = [
    ("Good morning [laughter], 朋友 (and all).", {"duration": 33 / 25}, "English"),
    ("A voice is known before\n the first word ends.", {"duration": 61 / 25, "instruct": "female, low pitch"}, None),
    ("Hm.", {"duration": 7 / 25, "denoise": False}, "de"),
    ("你好", {"duration": 1 / 25, "instruct": "耳语，中年"}, "zh"),
]
LONG = (
    "We read the same story twice, aloud. Mr. Smith asked which one they liked; nobody knew! Die Stimme, sagte er. Ja."
)


@pytest.fixture(scope="module", params=["tiny", pytest.param("released-2", marks=pytest.mark.long)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_omnivoice_talker(tmp_path_factory.mktemp("omnivoice") / "checkpoint", request.param)


@pytest.fixture(scope="module")
def official(folder: Path) -> OfficialTalker:
    return OfficialTalker(folder)


def official_voice(official: OfficialTalker, voice: ResolvedVoice) -> Any:
    codes = torch.from_numpy(voice.artifacts[CODEC_CODES].T.astype(np.int64))
    return official.clone_prompt(codes, with_end(voice.transcript or ""), 0.05)


def official_codes(official: OfficialTalker, voice: ResolvedVoice | None, config: dict[str, Any]) -> list[Tensor]:
    """The codes of all requests, as one batch of each value of `denoise`."""
    found: dict[int, Tensor] = {}
    for denoise in (True, False):
        chosen = [each for each, (_, options, _) in enumerate(REQUESTS) if options.get("denoise", True) == denoise]
        task = official.task(
            text=[REQUESTS[each][0] for each in chosen],
            language=[REQUESTS[each][2] for each in chosen],
            instruct=[REQUESTS[each][1].get("instruct") for each in chosen],
            duration=[REQUESTS[each][1]["duration"] for each in chosen],
            voice_clone_prompt=None if voice is None else official_voice(official, voice),
        )
        spoken = official.spoken(task, [SEEDS[each] for each in chosen], denoise=denoise, **config)
        found.update(zip(chosen, [codes for [codes] in spoken], strict=True))
    return [found[each] for each in range(len(REQUESTS))]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("cloned", [True, False], ids=["clone", "no voice"])
def test_codes_are_the_official_ones(
    folder: Path, official: OfficialTalker, config: dict[str, Any], cloned: bool
) -> None:
    voice = some_voice(40) if cloned else None
    expected = [codes.T.numpy() for codes in official_codes(official, voice, config)]
    assert [len(each) for each in expected] == [33, 61, 7, 1]
    for together in (False, True):
        bare = BareTalker(folder, together=together)
        plans = [
            bare.plan(text, voice, seed, language, **options, **config).request
            for (text, options, language), seed in zip(REQUESTS, SEEDS, strict=True)
        ]
        alone = [bare.speak(plan)[0] for plan in plans]
        for found in (alone, bare.speak(*plans)):
            assert [equal(*pair) for pair in zip(found, expected, strict=True)] == [True] * 4


def equal(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    return np.array_equal(ours, theirs)


@pytest.mark.parametrize("cloned", [True, False], ids=["clone", "no voice"])
@pytest.mark.parametrize("pace", [{}, {"speed": 1.3}, {"duration": 9.0}], ids=str)
def test_chunks_of_a_long_text_are_the_official_ones(
    folder: Path, official: OfficialTalker, cloned: bool, pace: dict[str, Any]
) -> None:
    config: dict[str, Any] = {"num_step": 4, "audio_chunk_duration": 2.0, "audio_chunk_threshold": 3.0}
    voice = some_voice(60, "One, two, three, and four, and five, and six.") if cloned else None
    theirs = None if voice is None else official_voice(official, voice)
    task = official.task(text=[LONG], voice_clone_prompt=theirs, instruct=["elderly"], **pace)
    [expected] = official.spoken(task, [9], **config)
    bare = BareTalker(folder)
    plan = bare.plan(LONG, voice, 9, instruct="elderly", **pace, **config)
    [runs] = bare.runs([plan.request])
    assert len(runs) == len(expected) > 2
    assert all(equal(run, codes.T.numpy()) for run, codes in zip(runs, expected, strict=True))
    assert plan.voice["text_chunks"].tolist() == [len(run) for run in runs]
