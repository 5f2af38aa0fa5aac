"""GET /v1/audio/speech/{id}: how a speech goes, and how it ended; the server is a double."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from voice_clone_gateway.http.errors import HTTPFailure
from voice_clone_gateway.http.keys import Key
from voice_clone_gateway.speech.statuses import SpeechStatuses

from tests.support.doubles.clock import Clock
from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import RATE, Failure, Server, chunk, speech
from tests.support.waiting import until

SPEECH = {"input": "Good morning.", "voice": "ada", "response_format": "pcm"}
SECONDS = 1920 / RATE  # of a chunk


def status(http: httpx2.Client, speech_id: str, **more: Any) -> dict[str, Any]:
    answer = http.get(f"/v1/audio/speech/{speech_id}", **more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["id"] == speech_id
    return found


def rounded(seconds: float) -> float:
    return round(seconds, 3)


@pytest.mark.parametrize("form", [{}, {"stream": False}, {"stream": True}])
def test_a_finished_speech(triton: Server, serve: Serve, form: dict[str, Any]) -> None:
    http = serve(triton.url)
    answer = http.post("/v1/audio/speech", json={**SPEECH, **form})
    found = status(http, answer.headers["x-request-id"])
    assert found["status"] == "finished" and found["finish_reason"] == "stop" and found["error"] is None
    assert found["seconds"] == rounded(3 * SECONDS)
    assert 0 < found["first_audio_ms"] <= found["total_ms"] and found["created_at"] > 1.7e9
    assert http.head(f"/v1/audio/speech/{found['id']}").status_code == 200


def test_a_long_text_is_one_speech(triton: Server, serve: Serve) -> None:
    http = serve(triton.url, sentence_characters=20)
    answer = http.post("/v1/audio/speech", json={**SPEECH, "input": "Good morning to you. Good evening to me."})
    assert len(triton.speeches) == 2
    found = status(http, answer.headers["x-request-id"])
    assert found["status"] == "finished" and found["seconds"] == rounded(6 * SECONDS)


def test_a_running_speech_and_one_whose_client_leaves(triton: Server, serve: Serve) -> None:
    leave = threading.Event()

    def slow(context: Any) -> Iterator[Any]:
        yield chunk(0, info={"cache": "hit"})
        leave.wait(30)
        yield chunk(1, final=True)

    triton.play = slow
    http = serve(triton.url)
    try:
        with http.stream("POST", "/v1/audio/speech", json=SPEECH) as answer:
            speech_id = answer.headers["x-request-id"]
            pieces = answer.iter_raw()  # without a reader the stream is closed
            next(pieces)
            until(lambda: status(http, speech_id)["seconds"] > 0)
            running = status(http, speech_id)
            assert running["status"] == "running" and running["finish_reason"] is None
            assert running["seconds"] == rounded(SECONDS) and running["first_audio_ms"] > 0
            until(lambda: status(http, speech_id)["total_ms"] > running["total_ms"])
        until(lambda: status(http, speech_id)["status"] != "running")
    finally:
        leave.set()
    gone = status(http, speech_id)
    assert gone["status"] == "cancelled" and gone["error"] is None and gone["finish_reason"] is None
    assert gone["seconds"] == rounded(SECONDS)
    assert status(http, speech_id)["total_ms"] == gone["total_ms"]


def test_a_raw_stream_that_breaks_off_says_why(triton: Server, serve: Serve) -> None:
    def broken(context: Any) -> Iterator[Any]:
        yield chunk(0, info={"cache": "hit"})
        yield chunk(1)
        raise Failure(grpc.StatusCode.INTERNAL, "deadline_exceeded: not done in time")

    triton.play = broken
    http = serve(triton.url)
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        http.stream("POST", "/v1/audio/speech", json=SPEECH) as answer,
    ):
        speech_id = answer.headers["x-request-id"]
        answer.read()
    found = status(http, speech_id)
    assert found["status"] == "failed" and found["seconds"] == rounded(2 * SECONDS)
    assert (found["error"]["code"], found["error"]["message"]) == ("deadline_exceeded", "not done in time")


@pytest.mark.parametrize("form", [{}, {"stream": False}, {"stream": True}])
@pytest.mark.parametrize("partial", [False, True])
def test_a_missed_end(triton: Server, serve: Serve, form: dict[str, Any], partial: bool) -> None:
    triton.play = lambda context: iter([chunk(0), chunk(1, final=True, info={"finish_reason": "runaway"})])
    http = serve(triton.url, missed_end_retries=0)
    asked = {**SPEECH, **form, "allow_partial": partial}
    speech_id = ""
    try:
        with http.stream("POST", "/v1/audio/speech", json=asked) as answer:
            speech_id = answer.headers["x-request-id"]
            answer.read()
    except httpx2.RemoteProtocolError:
        assert not partial and not form
    found = status(http, speech_id)
    assert found["finish_reason"] == "runaway"
    assert found["status"] == ("finished" if partial else "failed")
    assert (found["error"] or {}).get("code") == (None if partial else "incomplete")


@pytest.mark.parametrize(
    ("details", "code"),
    [("speaker_not_found: no voice", "voice_not_found"), ("Traceback: /srv/models/1/model.py", "internal")],
)
def test_a_speech_that_fails_before_its_audio(
    triton: Server, serve: Serve, caplog: pytest.LogCaptureFixture, details: str, code: str
) -> None:
    def fail(context: Any) -> Iterator[Any]:
        raise Failure(grpc.StatusCode.INTERNAL, details)
        yield

    triton.play = fail
    http = serve(triton.url)
    answer = http.post("/v1/audio/speech", json=SPEECH)
    found = status(http, answer.headers["x-request-id"])
    assert found["status"] == "failed" and found["seconds"] == 0 and found["first_audio_ms"] is None
    assert found["error"]["code"] == code and "/srv" not in found["error"]["message"]
    assert {"hint": None, **answer.json()["error"]} == found["error"]
    assert sum("failed" in record.message for record in caplog.records) == (code == "internal")


def test_an_unknown_id(triton: Server, serve: Serve) -> None:
    http = serve(triton.url)
    spoken = http.post("/v1/audio/speech", json=SPEECH).headers["x-request-id"]
    for name in ("0" * 32, spoken[:-1], "batch", "%00", "x" * 5000):
        answer = http.get(f"/v1/audio/speech/{name}")
        assert answer.status_code == (400 if name == "%00" else 404), name
        if answer.status_code == 404:
            assert answer.json()["error"]["code"] == "speech_not_found" and "X-Request-ID" in answer.text
    listed = http.get("/v1/audio/voices").headers["x-request-id"]  # of another request
    assert http.get(f"/v1/audio/speech/{listed}").status_code == 404


def test_a_key_sees_its_own_speeches_alone(triton: Server, serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(
        "a-secret speak name=alice owner\na-second speak name=alice owner\nb-secret speak name=bob owner\n"
        "d-secret speak name=desk\nc-secret manage name=desk\n"
    )
    http = serve(triton.url, api_keys_file=str(path))

    def bearer(key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    seen = {}
    for speaker in ("a-secret", "d-secret"):
        speech_id = http.post("/v1/audio/speech", json=SPEECH, headers=bearer(speaker)).headers["x-request-id"]
        seen[speaker] = {
            key: http.get(f"/v1/audio/speech/{speech_id}", headers=bearer(key)).status_code
            for key in ("a-secret", "a-second", "b-secret", "d-secret", "c-secret")
        }
        assert http.get(f"/v1/audio/speech/{speech_id}").status_code == 401
    others = {"b-secret": 404, "c-secret": 403}
    assert seen["a-secret"] == {**others, "a-secret": 200, "a-second": 200, "d-secret": 404}
    assert seen["d-secret"] == {**others, "a-secret": 404, "a-second": 404, "d-secret": 200}


def test_the_latest_are_kept_for_a_while() -> None:
    clock, alice, bob = Clock(), Key("alice"), Key("bob")
    statuses = SpeechStatuses(2, 60.0, clock)

    def speak(key: Key, speech_id: str) -> None:
        with statuses.follow(key, speech_id, clock()) as progress:
            clock.now += 1
            progress.first_audio()
            clock.now += 1
            progress.finish("stop")

    def known(key: Key, *ids: str) -> list[str]:
        found = []
        for speech_id in ids:
            try:
                found.append(statuses.find(key, speech_id).id)
            except HTTPFailure as failure:
                assert failure.status_code == 404
        return found

    with statuses.follow(alice, "long", clock()):
        for name in "abc":
            speak(alice, name)
        speak(bob, "d")
        assert known(alice, *"abcd", "long") == ["b", "c", "long"]  # those that run do not count
        assert known(bob, *"abcd", "long") == ["d"]
        found = statuses.find(alice, "b")
        assert (found.status, found.first_audio_ms, found.total_ms) == ("finished", 1000.0, 2000.0)
        clock.now += 57
        assert known(alice, *"bc", "long") == ["c", "long"] and known(bob, "d") == ["d"]
        clock.now += 600
        assert known(alice, *"bc", "long") == ["long"] and known(bob, "d") == []
        assert statuses.find(alice, "long").status == "running"
    assert statuses.find(alice, "long").status == "cancelled"


def test_none_are_kept_if_the_setting_says_so(triton: Server, serve: Serve) -> None:
    triton.play = lambda context: iter(speech(2))
    http = serve(triton.url, status_speeches=0)
    answer = http.post("/v1/audio/speech", json=SPEECH)
    assert http.get(f"/v1/audio/speech/{answer.headers['x-request-id']}").status_code == 404
