"""perf/gpu through Triton: what of a server's answers does not pass, where codes differ, when memory has grown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perf.on_gpu import against_cpu, minutes, server
from perf.on_gpu.against_cpu import apart, difference
from voice_clone.families.qwen3_tts.talker import read_prompt

pytestmark = pytest.mark.thorough

SOUND: dict[str, Any] = {
    "load": [{"load": "1 callers", "errors": {}}],
    "left": [{"load": "64 callers", "errors": {"cancelled": 60}}],
    "minutes": {"load": [{"load": "64 callers", "errors": {}}], "growth": 0.0},
    "restored": "restored",
}
EQUAL = {"frames": 9, "first_difference": None, "equal_before": 1.0}
SAME: dict[str, Any] = {"encoders": {"codes": EQUAL, "embedding": {"apart": 1e-6}}, "talkers": EQUAL, "decoders": 1e-6}


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({}, []),
        ({"load": [{"load": "2 callers", "errors": {"internal": 1}}]}, ["2 callers: {'internal': 1}"]),
        ({"left": [{"errors": {"cancelled": 1, "internal": 1}}]}, ["callers that leave"]),
        ({"minutes": {"load": [{"load": "64 callers", "errors": {"overloaded": 2}}]}}, ["64 callers"]),
        ({"restored": "miss"}, ["after a restart the voice was a miss"]),
    ],
)
def test_what_a_server_must_not_do(other: dict[str, Any], fault: list[str]) -> None:
    found = server.faults({**SOUND, **other})
    assert len(found) == len(fault) and all(part in whole for part, whole in zip(fault, found, strict=True))
    assert server.faults({}) == []  # no phase of it ran


FLIPPED = {"frames": 8, "first_difference": 6, "equal_before": 0.75}


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({}, []),
        ({"talkers": FLIPPED}, ["the talkers' codes differ from a CPU's from frame 6 of 8 on; 75.0% are equal before"]),
        ({"talkers": {**FLIPPED, "margin": 1e-4, "tie": 1e-3}}, []),  # a tie
        ({"talkers": {**FLIPPED, "margin": 0.1, "tie": 1e-3}}, ["the talkers' codes differ"]),
        ({"encoders": {"codes": FLIPPED}}, ["the encoders' codes differ"]),
        ({"encoders": {"embedding": {"apart": 0.1}}}, ["the encoders' embedding are not those of a CPU"]),
        ({"decoders": 0.2}, ["samples are not those of a CPU: apart 0.2"]),
        ({"decoders": float("nan")}, ["apart nan"]),
        ({"decoders": None}, ["apart None"]),
    ],
)
def test_what_must_be_as_on_a_cpu(other: dict[str, Any], fault: list[str]) -> None:
    found = against_cpu.faults({**SAME, **other})
    assert len(found) == len(fault) and all(part in whole for part, whole in zip(fault, found, strict=True))


def test_the_first_frame_that_differs() -> None:
    codes = np.arange(32, dtype=np.int32).reshape(8, 4)
    assert difference(codes, codes) == {"frames": 8, "first_difference": None, "equal_before": 1.0}
    other = codes.copy()
    other[6, 3] += 1
    other[7] += 1
    assert difference(other, codes) == FLIPPED
    assert difference(codes[:6], codes) == FLIPPED  # it ended there
    assert difference(codes, codes[:6]) == {"frames": 6, "first_difference": 6, "equal_before": 1.0}


@pytest.mark.parametrize("kind", [np.int32, np.uint16])
def test_codes_are_compared_by_frame(kind: Any) -> None:
    """Of any type: how far apart two codes are says nothing."""
    codes = np.ones((8, 4), kind)
    other = codes.copy()
    other[6:] = 0
    assert against_cpu.compared(other, codes) == FLIPPED
    assert against_cpu.compared(codes / 2, codes / 1) == {"apart": 0.5}


@pytest.mark.parametrize(("sent", "language"), [(-1, None), (2050, 2050)])
def test_a_prompt_of_a_server(sent: int, language: int | None) -> None:
    tensors: dict[str, Any] = {
        "role_ids": np.arange(3, dtype=np.int32),
        "text_ids": np.arange(5, dtype=np.int32),
        "speaker_embedding": np.ones(4, np.float32),
        "reference_ids": np.arange(2, dtype=np.int32),
        "reference_codes": np.ones((6, 16), np.int32),
        "instruct_ids": np.zeros(0, np.int32),
    }
    numbers = {"language_id": np.array([sent], np.int32), "speaker_id": np.array([-1], np.int32)}
    prompt = read_prompt({**tensors, **numbers})
    assert all(np.array_equal(getattr(prompt, name), value) for name, value in tensors.items())
    assert prompt.language_id == language


def test_how_far_apart() -> None:
    speech = np.sin(np.arange(1000, dtype=np.float32))
    assert apart(speech, speech) == 0 and apart(1.1 * speech, speech) == pytest.approx(0.1, rel=1e-3)
    assert apart(speech[1:], speech) is None


def test_growth_of_memory() -> None:
    """What fills in the first quarter is none; the worse of two kinds counts."""
    steady = [{"processes": 50.0 if number < 4 else 100.0, "gpu": 10.0} for number in range(16)]
    assert minutes.growth(steady) == 0
    leaking = [{**each, "gpu": 10.0 + number} for number, each in enumerate(steady)]
    assert minutes.growth(leaking) == pytest.approx(4 * (22 + 25) / 2 / (4 * (14 + 17) / 2) - 1 + 0, abs=0.05)
    with pytest.raises(ValueError, match="four"):
        minutes.growth(steady[:3])
