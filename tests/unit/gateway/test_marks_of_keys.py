"""The rule `mark` of a key: it goes with each of its speeches, by every way to speak, and is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from websockets.sync.client import connect

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import Failure, Server, chunk
from tests.support.waiting import WAIT, until

RULES = {"plain": "", "off": "mark=off", "on": "mark=on", "required": "mark=required name=alice owner"}
SPEECH = {"input": "Hello there.", "voice": "ada", "response_format": "pcm"}


@pytest.fixture
def http(triton: Server, serve: Serve, tmp_path: Path) -> httpx2.Client:
    (tmp_path / "keys").write_text("\n".join(f"key-{name} speak {rules}" for name, rules in RULES.items()))
    return serve(triton.url, api_keys_file=str(tmp_path / "keys"), audit_log=str(tmp_path / "audit"))


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer key-{name}"}


def speak_by_websocket(http: httpx2.Client, name: str, **config: Any) -> None:
    url = f"{http.base_url}/v1/audio/speech/stream".replace("http", "ws", 1).replace("//v1", "/v1")
    with connect(url, proxy=None, additional_headers=bearer(name)) as session:
        for message in (
            {"type": "session.config", "voice": "ada", **config},
            {"type": "input.text", "text": "Hello there."},
            {"type": "input.done"},
        ):
            session.send(json.dumps(message))
        while isinstance(got := session.recv(WAIT), bytes) or json.loads(got)["type"] != "session.done":
            assert isinstance(got, bytes) or json.loads(got)["type"] != "error", got


def play(info: dict[str, Any], context: Any) -> Iterator[Any]:
    yield chunk(0, final=True, info=info)


def refuse(context: Any) -> Iterator[Any]:
    raise Failure(grpc.StatusCode.UNIMPLEMENTED, "unsupported: this server marks no speech")


def is_counted(http: httpx2.Client, line: str) -> bool:
    return line in http.get("/metrics").text


@pytest.mark.parametrize(("name", "mark"), [("plain", ""), ("off", "off"), ("on", "on"), ("required", "required")])
def test_every_way_to_speak_carries_the_rule(name: str, mark: str, triton: Server, http: httpx2.Client) -> None:
    said = ("alice" if name == "required" else "", mark)
    triton.play = partial(play, {"mark": "marked"} if mark in ("on", "required") else {})
    for body in ({}, {"stream": False}, {"stream_format": "sse"}, {"input": "One sentence. " * 50}):
        assert http.post("/v1/audio/speech", headers=bearer(name), json={**SPEECH, **body}).status_code == 200
    items = {"items": [{"input": "One."}, {"input": "Two."}], "voice": "ada"}
    assert http.post("/v1/audio/speech/batch", headers=bearer(name), json=items).json()["succeeded"] == 2
    for config in ({}, {"stream_audio": False}, {"streaming_mode": "token_level"}):
        speak_by_websocket(http, name, **config)
    spoken = [(speech.owner, speech.mark) for speech in triton.spoken]
    assert len(spoken) > 9 and spoken == len(spoken) * [said]


def test_no_request_can_say_otherwise(triton: Server, http: httpx2.Client) -> None:
    triton.play = partial(play, {"mark": "marked"})
    for more in ({"mark": "off"}, {"options": {"mark": "off"}}):
        http.post("/v1/audio/speech", headers={**bearer("required"), "mark": "off"}, json={**SPEECH, **more})
    http.post("/v1/audio/speech?mark=off", headers={**bearer("required"), "mark": "off"}, json=SPEECH)
    assert len(triton.spoken) == 2, "a field mark is unknown"
    for speech in triton.spoken:
        assert speech.mark == "required" and "mark" not in speech.metadata


def test_a_server_that_does_not_know_the_rule(triton: Server, http: httpx2.Client, tmp_path: Path) -> None:
    triton.play = partial(play, {})
    refused = http.post("/v1/audio/speech", headers=bearer("required"), json=SPEECH)
    assert (refused.status_code, refused.json()["error"]["code"]) == (501, "unsupported")
    assert "this server does not know mark required" in refused.json()["error"]["message"]
    [line] = (tmp_path / "audit").read_text().splitlines()
    assert json.loads(line)["outcome"] == "unsupported"


def test_the_audit_log_and_the_metrics(triton: Server, http: httpx2.Client, tmp_path: Path) -> None:
    for name, result in (("plain", None), ("plain", "marked"), ("on", "failed"), ("required", "marked")):
        info = {} if result is None else {"mark": result}
        triton.play = partial(play, info)
        assert http.post("/v1/audio/speech", headers=bearer(name), json=SPEECH).status_code == 200

    triton.play = refuse
    refused = http.post("/v1/audio/speech", headers=bearer("required"), json=SPEECH)
    assert refused.status_code == 501 and refused.json()["error"]["message"] == "this server marks no speech"
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [(each.get("mark_rule"), each.get("mark"), each["outcome"]) for each in lines] == [
        (None, None, "ok"),
        (None, "marked", "ok"),
        ("on", "failed", "ok"),
        ("required", "marked", "ok"),
        ("required", None, "unsupported"),
    ]
    triton.play = partial(play, {"mark": "marked"})
    speak_by_websocket(http, "required")
    counted = (("none", "none", 1), ("none", "marked", 1), ("on", "failed", 1), ("required", "marked", 2))
    for rule, result, count in counted:
        line = f'voice_clone_gateway_marks_total{{result="{result}",rule="{rule}"}} {count}.0'
        until(partial(is_counted, http, line))
