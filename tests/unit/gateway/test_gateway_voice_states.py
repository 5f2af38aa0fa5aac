"""The state of a voice's preparation over HTTP, from its states for the families; the server is a double."""

from __future__ import annotations

import json

import pytest

from tests.support.doubles.gateway_thread import Shared


def artifacts(states: str) -> list[dict[str, str]]:
    """One family for each state; every bad one has a reason."""
    reasons = {"failed": {"reason": "no encoder"}, "unsupported": {"reason": "needs reference_text"}}
    return [
        {"model_type": f"family_{index}", "mode": "best", "state": state, **reasons.get(state, {})}
        for index, state in enumerate(states.split())
    ]


@pytest.mark.parametrize(
    ("states", "status", "reason"),
    [
        ("", "pending", None),
        ("pending", "pending", None),
        ("failed processing", "processing", None),
        ("unsupported failed ready", "ready", None),
        ("unsupported pending", "pending", None),
        ("pending failed", "failed", "no encoder"),
        ("unsupported failed failed", "failed", "no encoder; no encoder"),
        ("unsupported", "unsupported", "needs reference_text"),
        ("unsupported unsupported", "unsupported", "needs reference_text; needs reference_text"),
        ("something_new", "pending", None),
    ],
)
def test_the_status_of_a_voice(shared: Shared, states: str, status: str, reason: str | None) -> None:
    voice = {"name": "ada", "artifacts": artifacts(states)}
    triton, http = shared
    triton.answer = lambda inputs: {"result": json.dumps({"speakers": [voice]}).encode()}
    [listed] = http.get("/v1/audio/voices").json()["uploaded_voices"]
    triton.answer = lambda inputs: {"result": json.dumps(voice).encode()}
    shown = http.get("/v1/audio/voices/ada").json()
    for each in (listed, shown):
        assert (each["cache_status"], each.get("cache_reason")) == (status, reason)
        assert each["artifacts"] == voice["artifacts"]
