"""What callers see when the speech server fails, before the first byte and after it."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import httpx2
import pytest
import websockets.sync.client

from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import Failure, Server, chunk, endless, speech
from tests.support.waiting import WAIT, until

SPEECH = {"input": "A secret sentence.", "voice": "ada", "response_format": "pcm"}
STATUS = grpc.StatusCode


def error(answer: httpx2.Response) -> dict[str, Any]:
    """The error in an answer, whose shape is checked."""
    body = answer.json()
    assert set(body) == {"error"} and set(body["error"]) - {"hint"} == {"message", "type", "param", "code"}
    return dict(body["error"])


def asked(http: httpx2.Client, speech: dict[str, Any], version: str = "HTTP/1.1") -> socket.socket:
    """A plain connection to the gateway of `http`, on which a speech was asked for."""
    body = json.dumps(speech)
    host = "" if version == "HTTP/1.0" else "Host: x\r\n"  # 1.0 has none
    head = f"POST /v1/audio/speech {version}\r\n{host}Content-Type: application/json\r\n"
    connection = socket.create_connection((http.base_url.host, http.base_url.port or 80))
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return connection


@pytest.mark.parametrize(
    ("details", "status", "code"),
    [
        ("invalid_argument: text is blank", 400, "invalid_argument"),
        ("speaker_not_found: no voice", 404, "voice_not_found"),
        ("speaker_exists: taken", 409, "voice_exists"),
        ("permission_denied: send s3cret", 403, "permission_denied"),
        ("unsupported: not with this checkpoint", 501, "unsupported"),
        ("cancelled: the stream was cancelled", 503, "cancelled"),
        ("overloaded: 64 streams wait already", 503, "overloaded"),
        ("in ensemble 'a', in ensemble 'a', overloaded: 64 streams wait already", 503, "overloaded"),
        ("in ensemble 'a', in ensemble 'a', internal: /srv/models/1/model.py failed", 500, "internal"),
        ("deadline_exceeded: not done in time", 504, "deadline_exceeded"),
        ("internal: /srv/models/1/model.py failed", 500, "internal"),
        ("Traceback: /srv/models/1/model.py", 500, "internal"),
    ],
)
def test_errors_before_the_first_byte(triton: Server, serve: Serve, details: str, status: int, code: str) -> None:
    def fail(context: Any) -> Iterator[Any]:
        raise Failure(STATUS.INTERNAL, details)
        yield

    triton.play = fail
    http = serve(triton.url, retry_after=7)
    for stream in (True, False):
        answer = http.post("/v1/audio/speech", json={**SPEECH, "stream": stream})
        found = error(answer)
        assert (answer.status_code, found["code"]) == (status, code)
        assert answer.headers.get("retry-after") == ("7" if status == 503 else None)
        if status == 500:
            assert "/srv" not in found["message"] and answer.headers["x-request-id"] in found["message"]
        elif status == 403:  # the operator of the gateway can mend it, its callers cannot
            assert "s3cret" not in found["message"] and found["type"] == "permission_error"
        else:
            more = "; GET /v1/audio/voices" if status == 404 else ""
            assert found["message"].startswith(details.rpartition(": ")[2] + more)


def test_a_server_that_is_away(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    http = serve("127.0.0.1:9")
    for answer in (http.post("/v1/audio/speech", json=SPEECH), http.get("/v1/audio/voices"), http.get("/health")):
        assert answer.status_code == 503 and error(answer)["code"] == "server_unavailable"
        assert "127.0.0.1" not in answer.text and answer.headers["retry-after"] == "1"


def broken(context: Any) -> Iterator[Any]:
    """Two good chunks, then an error."""
    yield chunk(0, info={"cache": "hit"})
    yield chunk(1)
    raise Failure(STATUS.INTERNAL, "internal: broken at /srv/model.py")


def truncated(context: Any) -> Iterator[Any]:
    """A stream without its end."""
    yield from speech(3)[:2]


@pytest.mark.parametrize("play", [broken, truncated])
def test_a_raw_stream_that_fails_is_broken_off(triton: Server, serve: Serve, play: Any) -> None:
    triton.play = play
    got = bytearray()
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        serve(triton.url).stream("POST", "/v1/audio/speech", json=SPEECH) as answer,
    ):
        assert answer.status_code == 200
        for piece in answer.iter_raw():
            got += piece
    assert len(got) == 2 * 1920 * 2


def by_http_1_0(http: httpx2.Client) -> bytes:
    """The body for a caller of HTTP/1.0: what comes before the connection ends."""
    got = b""
    with asked(http, SPEECH, "HTTP/1.0") as connection:
        while piece := connection.recv(1 << 16):
            got += piece
    return got.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("play", [broken, truncated])
def test_a_raw_stream_that_fails_does_not_look_whole_to_http_1_0(triton: Server, serve: Serve, play: Any) -> None:
    http = serve(triton.url)
    assert len(by_http_1_0(http)) == 3 * 1920 * 2
    triton.play = play
    with pytest.raises(ConnectionResetError):
        by_http_1_0(http)


@pytest.mark.parametrize("play", [broken, truncated])
def test_a_stream_of_events_reports_the_failure(triton: Server, serve: Serve, play: Any) -> None:
    triton.play = play
    answer = serve(triton.url).post("/v1/audio/speech", json={**SPEECH, "stream_format": "sse"})
    *deltas, last = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in deltas] == ["speech.audio.delta"] * 2
    assert last["type"] == "speech.audio.error"
    assert last["error"]["code"] == 500 and last["error"]["partial_audio"] is True
    assert "/srv" not in answer.text


def test_a_whole_answer_that_fails_late_has_a_status(triton: Server, serve: Serve) -> None:
    triton.play = broken
    answer = serve(triton.url).post("/v1/audio/speech", json={**SPEECH, "stream": False})
    assert answer.status_code == 500 and error(answer)["code"] == "internal"


@pytest.mark.parametrize("given", [{}, {"stream": False}, {"stream_format": "sse"}])
@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_leaves_stops_the_server(
    triton: Server, serve: Serve, begun: bool, given: dict[str, Any]
) -> None:
    waiting, leave = threading.Event(), threading.Event()

    def slow(context: Any) -> Iterator[Any]:
        if begun:
            yield chunk(0, info={"cache": "hit"})
        waiting.set()
        leave.wait(30)
        yield chunk(int(begun), final=True)

    triton.play = slow
    http = serve(triton.url)
    with asked(http, {**SPEECH, **given}) as connection:
        assert waiting.wait(30)
        if begun and given.get("stream") is not False:
            assert connection.recv(12) == b"HTTP/1.1 200"
    try:
        assert triton.left.acquire(timeout=30), "the server goes on"
    finally:
        leave.set()
    until(lambda: "voice_clone_gateway_live_speeches 0.0" in http.get("/metrics").text)


def test_a_client_that_reads_nothing_stops_the_server(triton: Server, serve: Serve) -> None:
    triton.play = endless(0.0, count=200_000, info={"cache": "hit"})
    http = serve(triton.url, stall_seconds=0.5)
    with asked(http, SPEECH):
        assert triton.left.acquire(timeout=30), "the server goes on"
        until(lambda: "voice_clone_gateway_live_speeches 0.0" in http.get("/metrics").text)


def test_a_second_request_on_the_way_does_not_hide_that_its_client_leaves(triton: Server, serve: Serve) -> None:
    triton.play = endless(info={"cache": "hit"})
    http = serve(triton.url)
    with asked(http, SPEECH) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert triton.left.acquire(timeout=30), "the server goes on"


def test_more_speeches_than_allowed(triton: Server, serve: Serve) -> None:
    more = threading.Event()

    def slow(context: Any) -> Iterator[Any]:
        yield chunk(0, info={"cache": "hit"})
        more.wait(30)
        yield chunk(1, final=True)

    triton.play = slow
    http = serve(triton.url, max_requests=1)
    with http.stream("POST", "/v1/audio/speech", json=SPEECH) as answer:
        for path, body in (("speech", SPEECH), ("speech/batch", {"items": [SPEECH]})):
            refused = http.post(f"/v1/audio/{path}", json=body)
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            assert error(refused)["code"] == "overloaded"
        more.set()
        assert len(answer.read()) == 2 * 1920 * 2
    assert http.post("/v1/audio/speech", json=SPEECH).status_code == 200


def test_no_text_is_logged(triton: Server, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    http = serve(triton.url)
    clip = {"ref_audio": "data:audio/wav;base64,QUJD", "ref_text": "A secret sentence."}
    assert http.post("/v1/audio/speech", json=SPEECH).status_code == 200
    assert http.post("/v1/audio/speech", json={"input": "A secret sentence.", **clip}).status_code == 200
    triton.play = broken
    http.post("/v1/audio/speech", json={**SPEECH, "stream_format": "sse"})
    http.post("/v1/audio/speech", json={**SPEECH, "language": 3})
    assert len(caplog.records) > 4
    for record in caplog.records:
        assert "secret" not in record.getMessage() and "QUJD" not in record.getMessage()


@pytest.mark.parametrize(
    ("path", "body", "field", "meant"),
    [
        ("speech", {"text": "Hello.", "voice": "ada"}, "text", "input"),
        ("speech", {"Input": "Hello.", "voice": "ada"}, "Input", "input"),
        ("speech", {"voice": "ada", "inptu": "Hello."}, "inptu", "input"),
        ("speech", {"input": "Hello.", "responseFormat": "wav"}, "responseFormat", "response_format"),
        ("speech", {"input": "Hello.", "output_format": "wav"}, "output_format", "response_format"),
        ("speech", {"input": "Hello.", "voiceId": "ada"}, "voiceId", "voice"),
        ("speech/batch", {"itmes": []}, "itmes", "items"),
        ("voices/design", {"description": "warm", "text": "Hello."}, "text", "input"),
        ("voices", {"nmae": "Ada"}, "nmae", "name"),
        ("voices", {"name": "Ada", "transcript": "Hello."}, "transcript", "reference_text"),
    ],
)
def test_an_unknown_field_names_the_one_that_is_meant(
    shared: Shared, path: str, body: dict[str, Any], field: str, meant: str
) -> None:
    given = {"data": body} if path == "voices" else {"json": body}
    error = shared[1].post(f"/v1/audio/{path}", **given).json()["error"]
    assert error["param"] == field and f"did you mean {meant}?" in error["message"]


def test_an_unknown_field_of_an_item_or_a_message_does_so_too(shared: Shared) -> None:
    http = shared[1]
    batch = http.post("/v1/audio/speech/batch", json={"items": [{"text": "Hello."}], "voice": "ada"}).json()
    assert "did you mean input?" in batch["results"][0]["error"]["message"]
    url = str(http.base_url).replace("http", "ws")
    with websockets.sync.client.connect(f"{url}/v1/audio/speech/stream", proxy=None) as connection:
        for message, meant in (
            ({"type": "session.config", "streamAudio": True}, "stream_audio"),
            ({"type": "input.text", "txt": "Hello."}, "text"),
            ({"type": "cancel", "playedMs": 5}, "played_ms"),
        ):
            connection.send(json.dumps(message))
            assert f"did you mean {meant}?" in json.loads(connection.recv(WAIT))["error"]["message"]


def test_a_speech_that_never_began_is_none_that_ended_early(triton: Server, serve: Serve) -> None:
    http = serve(triton.url)

    def counted(name: str) -> dict[str, float]:
        lines = [line for line in http.get("/metrics").text.splitlines() if f"{name}_speeches_total{{" in line]
        return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in lines}

    def refuse(context: Any) -> Iterator[Any]:
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice is registered under the name 'ada'")
        yield

    def fail(context: Any) -> Iterator[Any]:
        yield chunk(0)
        raise Failure(grpc.StatusCode.INTERNAL, "internal: broken")

    body = {"input": "Hello.", "voice": "ada"}
    url = str(http.base_url).replace("http", "ws")

    def ask() -> None:
        with contextlib.suppress(httpx2.RemoteProtocolError):
            http.post("/v1/audio/speech", json=body)
        http.post("/v1/audio/speech/batch", json={"items": [body]})
        with websockets.sync.client.connect(f"{url}/v1/audio/speech/stream", proxy=None) as connection:
            for message in ({"type": "session.config", "voice": "ada"}, {"type": "input.text", "text": "Hello."}):
                connection.send(json.dumps(message))
            connection.send('{"type": "input.done"}')
            while not (isinstance(answer := connection.recv(WAIT), str) and "session.done" in answer):
                pass

    triton.play = refuse
    ask()
    http.post("/v1/audio/speech", json={**body, "model": "none"})
    assert counted("refused") == {"voice_not_found": 3, "model_not_found": 1} and not any(counted("aborted").values())
    triton.play = fail
    ask()
    assert counted("aborted") == {"incomplete": 0, "internal": 3} and sum(counted("refused").values()) == 4
