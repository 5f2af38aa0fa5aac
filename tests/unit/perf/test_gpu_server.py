"""perf/gpu: what of a server's answers does not pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perf.gpu_server import _apart, _faults

SOUND: dict[str, Any] = {
    "load": [{"load": "1 callers", "errors": {}}],
    "left": [{"load": "64 callers", "errors": {"cancelled": 60}}],
    "restored": "restored",
    "as_a_cpu": 1e-5,
}


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({}, []),
        ({"load": [{"load": "2 callers", "errors": {"internal": 1}}]}, ["2 callers: {'internal': 1}"]),
        ({"left": [{"errors": {"cancelled": 1, "internal": 1}}]}, ["callers that leave"]),
        ({"restored": "miss"}, ["after a restart the voice was a miss"]),
        ({"as_a_cpu": 0.2}, ["not that of a CPU"]),
        ({"as_a_cpu": float("nan")}, ["not that of a CPU"]),
        ({"as_a_cpu": None}, ["not that of a CPU"]),
    ],
)
def test_what_does_not_pass(other: dict[str, Any], fault: list[str]) -> None:
    found = list(_faults({**SOUND, **other}))
    assert len(found) == len(fault) and all(part in whole for part, whole in zip(fault, found, strict=True))


def test_how_far_apart() -> None:
    speech = np.sin(np.arange(1000, dtype=np.float32))
    assert _apart(speech, speech) == 0 and _apart(1.1 * speech, speech) == pytest.approx(0.1, rel=1e-3)
