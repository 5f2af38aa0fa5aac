"""Keys that own voices, limits of keys, and the audit log, over HTTP; the server is a double."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from voice_clone_gateway import Settings, create_app
from websockets.sync.client import connect

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import Failure, Server, chunk, speech
from tests.support.waiting import until

ALICE, BOB, DESK = "alices-secret", "bobs-secret", "desks-secret"
KEYS = f"""{ALICE} speak,manage name=alice owner voices=3 megabytes=2 concurrent=2 characters_per_minute=200
{BOB} speak,manage name=bob owner
{DESK} speak,manage name=desk
"""
CLIP = {"audio_sample": ("clip.wav", b"clip", "audio/wav")}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    return str(path)


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def http(triton: Server, serve: Serve, keys: str, audit: Path) -> httpx2.Client:
    return serve(triton.url, api_keys_file=keys, audit_log=str(audit))


def say(http: httpx2.Client, key: str, text: str = "Good morning.", **more: Any) -> httpx2.Response:
    body = {"input": text, "voice": "ada", "response_format": "pcm", **more}
    return http.post("/v1/audio/speech", headers=bearer(key), json=body)


def entries(audit: Path, count: int) -> list[dict[str, Any]]:
    until(lambda: len(audit.read_text().splitlines()) >= count)
    return [json.loads(line) for line in audit.read_text().splitlines()]


def test_each_call_of_a_key_carries_its_owner_and_its_limit(triton: Server, http: httpx2.Client) -> None:
    record = {"name": "ada", "speakers": [], "created_at": 1.5}
    triton.answer = lambda inputs: {"result": json.dumps(record).encode(), "artifacts": b""}

    def options(method: str, path: str, key: str, **body: Any) -> dict[str, Any]:
        assert http.request(method, path, headers=bearer(key), **body).status_code == 200
        return sent_last()

    def sent_last() -> dict[str, Any]:
        sent: dict[str, Any] = json.loads(triton.calls[-1][1].get("options", b"{}"))
        making = triton.calls[-1][1]["operation"] in (b"upload", b"import")
        assert ("reserved" in sent) == (making and "owner" in sent)
        return {name: value for name, value in sent.items() if name != "reserved"}

    form = {"files": CLIP, "data": {"name": "ada", "consent": "by mail"}}
    for key, owner, limit in (
        (ALICE, {"owner": "alice"}, {"max_owned": 3, "max_owned_bytes": 2_000_000}),
        (BOB, {"owner": "bob"}, {}),
        (DESK, {}, {}),
    ):
        assert options("POST", "/v1/audio/voices", key, **form) == {**owner, **limit}
        assert options("GET", "/v1/audio/voices", key) == {**owner, "limit": 1001}
        for method, path in (
            ("GET", "/v1/audio/voices/ada"),
            ("DELETE", "/v1/audio/voices/ada"),
            ("POST", "/v1/audio/voices/ada/cache"),
        ):
            assert options(method, path, key) == owner, path
        for path in ("/v1/audio/voices/ada/export", "/v1/audio/bundle"):
            asked = options("GET", path, key)
            assert asked == {**owner, "id": asked["id"]}, path
        binary = {"content": b"x", "headers": {**bearer(key), "Content-Type": "application/octet-stream"}}
        assert http.post("/v1/audio/bundle", **binary).status_code == 200
        assert sent_last() == {**owner, **limit}
    form["data"] = {"name": "ada", "consent": "by mail", "shared": "true"}
    assert options("POST", "/v1/audio/voices", BOB, **form) == {"owner": "bob", "shared": True}


def test_a_speech_of_a_key_carries_its_owner(triton: Server, http: httpx2.Client) -> None:
    for key, owner in ((ALICE, "alice"), (BOB, "bob"), (DESK, "")):
        triton.spoken.clear()
        assert say(http, key).status_code == 200
        batch = {"voice": "ada", "items": [{"input": "One."}, {"input": "Two."}], "response_format": "pcm"}
        assert http.post("/v1/audio/speech/batch", headers=bearer(key), json=batch).json()["succeeded"] == 2
        assert [speech.owner for speech in triton.spoken] == [owner] * 3


def test_the_list_names_no_alias_that_a_key_cannot_use(triton: Server, serve: Serve, keys: str) -> None:
    voice = {"name": "Ada", "owner": "alice", "shared": True, "consent": "by mail"}
    aliases = [{"name": "nova", "voice": "ada"}, {"name": "echo", "voice": "hidden"}]

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        found = aliases if b"alias" in inputs.get("options", b"") else [voice]
        return {"result": json.dumps({"speakers": found}).encode()}

    triton.answer = answer
    http = serve(triton.url, api_keys_file=keys, default_voice="hidden")
    mine = http.get("/v1/audio/voices", headers=bearer(ALICE)).json()
    assert mine["voice_aliases"] == {"nova": "ada"} and "default_voice" not in mine
    [listed] = mine["uploaded_voices"]
    assert (listed["owner"], listed["shared"]) == ("alice", True)
    all_of_them = http.get("/v1/audio/voices", headers=bearer(DESK)).json()
    assert len(all_of_them["voice_aliases"]) == 2 and all_of_them["default_voice"] == "hidden"


def test_too_many_voices(triton: Server, http: httpx2.Client) -> None:
    def full(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.UNAVAILABLE, "quota_exceeded: 3 voices are registered, and at most 3 are allowed")

    triton.answer = full
    data = {"name": "ada", "consent": "by mail"}
    answer = http.post("/v1/audio/voices", headers=bearer(ALICE), files=CLIP, data=data)
    assert answer.status_code == 429 and answer.json()["error"]["code"] == "too_many_voices"
    assert "at most 3" in answer.json()["error"]["message"]
    assert "retry-after" not in answer.headers, "waiting does not help"


def test_too_many_speeches_of_one_key(triton: Server, http: httpx2.Client) -> None:
    go_on = threading.Event()

    def slow(context: Any) -> Iterator[Any]:
        yield chunk(0, info={"cache": "hit"})
        go_on.wait(20)
        yield chunk(1, final=True, info={"cache": "hit"})

    triton.play = slow
    answers: list[httpx2.Response] = []
    running = [threading.Thread(target=lambda: answers.append(say(http, ALICE))) for _ in range(2)]
    for thread in running:
        thread.start()
    until(lambda: len(triton.speeches) == 2)
    refused = say(http, ALICE)
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("too_many_speeches", "rate_limit_error") and "2 speeches" in error[
        "message"
    ]
    batch = {"voice": "ada", "items": [{"input": "One."}]}
    assert http.post("/v1/audio/speech/batch", headers=bearer(ALICE), json=batch).status_code == 429
    go_on.set()
    for thread in running:
        thread.join()
    assert [answer.status_code for answer in answers] == [200, 200]
    assert say(http, BOB).status_code == 200 and say(http, ALICE).status_code == 200


def test_a_batch_fills_the_places_of_its_key_and_no_more(triton: Server, http: httpx2.Client) -> None:
    live, most, lock = 0, 0, threading.Lock()
    idle = "voice_clone_gateway_live_speeches 0.0"
    uncounted: list[bool] = []

    def counted(context: Any) -> Iterator[Any]:
        nonlocal live, most
        with lock:
            live += 1
            most = max(most, live)
        uncounted.append(idle in http.get("/metrics").text)
        yield from speech(3)
        with lock:
            live -= 1

    triton.play = counted
    batch = {"voice": "ada", "items": [{"input": f"Item {index}."} for index in range(6)], "response_format": "pcm"}
    assert http.post("/v1/audio/speech/batch", headers=bearer(ALICE), json=batch).json()["succeeded"] == 6
    assert most <= 2
    assert uncounted == [False] * 6 and idle in http.get("/metrics").text


def test_too_many_characters(triton: Server, http: httpx2.Client) -> None:
    assert say(http, ALICE, "x" * 150).status_code == 200
    refused = say(http, ALICE, "x" * 100)
    assert refused.status_code == 429 and 0 < int(refused.headers["retry-after"]) <= 15
    error = refused.json()["error"]
    assert error["code"] == "too_many_characters" and "200 characters a minute" in error["message"]
    never = say(http, ALICE, "x" * 201)
    assert never.status_code == 400 and "200 a minute" in never.json()["error"]["message"]
    items = {"voice": "ada", "items": [{"input": "x" * 100}, {"input": "Hi."}], "response_format": "pcm"}
    results = http.post("/v1/audio/speech/batch", headers=bearer(ALICE), json=items).json()["results"]
    assert [result["status"] for result in results] == ["error", "success"]
    assert results[0]["error"]["code"] == "too_many_characters"
    assert say(http, BOB, "x" * 250).status_code == 200


def test_the_audit_log_of_voices(triton: Server, http: httpx2.Client, audit: Path) -> None:
    record = {"name": "Ada", "generation": 7, "reference_text": "SPOKEN", "consent": "SIGNED", "speakers": []}
    triton.answer = lambda inputs: {"result": json.dumps(record).encode(), "artifacts": b""}
    data = {"name": "Ada", "consent": "SIGNED", "reference_text": "SPOKEN"}
    uploaded = http.post("/v1/audio/voices", headers=bearer(ALICE), files=CLIP, data=data)
    http.get("/v1/audio/voices/ada/export", headers=bearer(DESK))
    http.get("/v1/audio/bundle", headers=bearer(ALICE))
    http.post("/v1/audio/bundle", headers={**bearer(BOB), "Content-Type": "application/octet-stream"}, content=b"x")

    def missing(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice is registered under the name 'x'")

    triton.answer = missing
    http.delete(f"/v1/audio/voices/{'x' * 300}", headers=bearer(BOB))
    found = entries(audit, 5)
    reported = [tuple(entry[name] for name in ("key", "action", "voice", "outcome")) for entry in found]
    assert reported == [
        ("alice", "upload", "Ada", "ok"),
        ("desk", "export", "ada", "ok"),
        ("alice", "export", None, "ok"),
        ("bob", "import", None, "ok"),
        ("bob", "delete", "x" * 64, "voice_not_found"),
    ]
    assert found[0]["generation"] == 7 and found[0]["request"] == uploaded.headers["x-request-id"]
    assert found[0]["time"].endswith("+00:00")
    assert not any(word in audit.read_text() for word in ("SPOKEN", "SIGNED", ALICE, BOB, DESK))


def test_the_audit_log_of_speeches(triton: Server, http: httpx2.Client, audit: Path) -> None:
    def named(context: Any) -> Iterator[Any]:
        yield chunk(0, info={"voice": "Ada", "generation": 4})
        yield chunk(1, final=True, info={"voice": "Ada", "generation": 4, "mark": "marked"})

    triton.play = named
    answer = say(http, ALICE, "SPOKEN words")
    inline = {"voice": None, "reference_audio": "data:audio/wav;base64,UklGRg=="}
    say(http, BOB, "SPOKEN words", **inline)
    batch = {"voice": "ada", "items": [{"input": "SPOKEN"}], "response_format": "pcm"}
    http.post("/v1/audio/speech/batch", headers=bearer(DESK), json=batch)

    def broken(context: Any) -> Iterator[Any]:
        yield chunk(0, info={"voice": "Ada", "generation": 4})
        raise Failure(grpc.StatusCode.UNAVAILABLE, "overloaded: full")

    triton.play = broken
    with pytest.raises(httpx2.RemoteProtocolError):
        say(http, BOB)
    first, second, third, fourth = entries(audit, 4)
    time, request = first.pop("time"), first.pop("request")
    assert request == answer.headers["x-request-id"] and time.startswith("20")
    assert first == {
        "key": "alice", "action": "speech", "voice": "Ada", "outcome": "ok", "source": "voice", "characters": 12,
        "generation": 4, "mark": "marked", "seconds": 0.16,
    }  # fmt: skip
    assert (second["key"], second["source"]) == ("bob", "reference_audio")
    assert (third["key"], third["voice"], third["outcome"]) == ("desk", "Ada", "ok")
    assert (fourth["key"], fourth["outcome"]) == ("bob", "overloaded")
    assert "SPOKEN" not in audit.read_text()


def test_the_operator_may_move_the_audit_log(triton: Server, http: httpx2.Client, audit: Path) -> None:
    say(http, BOB)
    entries(audit, 1)
    audit.rename(audit.with_suffix(".1"))
    say(http, BOB)
    until(audit.exists)
    assert len(entries(audit, 1)) == 1 and len(entries(audit.with_suffix(".1"), 1)) == 1
    for file in (audit, audit.with_suffix(".1")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_audit_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        create_app(Settings(audit_log=str(tmp_path / "missing" / "file")))


def test_a_gateway_without_keys_logs_no_key(triton: Server, serve: Serve, audit: Path) -> None:
    http = serve(triton.url, audit_log=str(audit))
    http.post("/v1/audio/speech", json={"input": "Hi.", "voice": "ada", "response_format": "pcm"})
    [entry] = entries(audit, 1)
    assert entry["key"] is None and entry["outcome"] == "ok"


def test_a_websocket_has_the_owner_and_the_limits_of_its_key(triton: Server, http: httpx2.Client, audit: Path) -> None:
    url = f"ws://{http.base_url.host}:{http.base_url.port}/v1/audio/speech/stream"
    with connect(url, additional_headers=bearer(ALICE), proxy=None) as socket:

        def send(kind: str, **fields: Any) -> None:
            socket.send(json.dumps({"type": kind, **fields}))

        def receive(kind: str) -> dict[str, Any]:
            while True:
                message = socket.recv(30)
                if isinstance(message, str) and json.loads(message)["type"] == kind:
                    found: dict[str, Any] = json.loads(message)
                    return found

        send("session.config", voice="ada", response_format="pcm")
        send("input.text", text="One sentence. " * 10)
        send("input.text", text="x" * 100)
        assert receive("error")["error"]["code"] == "too_many_characters"
        send("input.done")
        assert "failed" not in receive("session.done"), "the text before the refused piece is spoken"
    assert set(triton.owners[-3:]) == {"alice"}
    [entry] = entries(audit, 1)
    assert (entry["key"], entry["voice"], entry["outcome"], entry["characters"]) == ("alice", "ada", "ok", 140)
    assert entry["seconds"] > 0


def test_a_list_of_voices_has_pages_and_the_default_may_be_behind_them(triton: Server, serve: Serve, keys: str) -> None:
    names = [f"v{number}" for number in range(5)]

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        options = json.loads(inputs.get("options", b"{}"))
        if inputs["operation"] == b"presets":
            return {"result": b'{"presets": []}'}
        if inputs["operation"] == b"get":
            if inputs["name"].decode() not in names:
                raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: nobody")
            return {"result": json.dumps({"name": inputs["name"].decode()}).encode()}
        if options.get("kind") == "alias":
            aliases = [{"name": "nova", "voice": "v3"}, {"name": "echo", "voice": "gone"}]
            return {"result": json.dumps({"speakers": aliases}).encode()}
        begin = names.index(options["after"]) + 1 if "after" in options else 0
        found = [{"name": name} for name in names[begin : begin + options["limit"]]]
        return {"result": json.dumps({"speakers": found}).encode()}

    triton.answer = answer
    http = serve(triton.url, api_keys_file=keys, default_voice="v4")

    def page(query: str) -> tuple[list[str], bool]:
        body = http.get(f"/v1/audio/voices{query}", headers=bearer(ALICE)).json()
        assert body["default_voice"] == "v4" and body["voice_aliases"] == {"nova": "v3"}
        assert body["voices"] == [voice["name"] for voice in body["uploaded_voices"]]
        return body["voices"], body["has_more"]

    assert page("") == (names, False)
    assert page("?limit=2") == (names[:2], True)
    assert page("?limit=2&after=v1") == (names[2:4], True)
    assert page("?limit=2&after=v3") == (names[4:], False)
    for wrong in ("?limit=0", "?limit=1001", "?limit=x"):
        assert http.get(f"/v1/audio/voices{wrong}", headers=bearer(ALICE)).status_code == 400


def test_voices_that_models_bring_are_on_the_first_page_and_may_be_the_default(
    triton: Server, serve: Serve, keys: str
) -> None:
    """Everybody has them. A registered voice of the same name stands for one in the list of names."""
    presets = [
        {"name": "casual_male", "model_type": "voxtral", "registered": False},
        {"name": "Bob", "model_type": "voxtral", "registered": True},
    ]

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"presets":
            return {"result": json.dumps({"presets": presets}).encode()}
        if inputs["operation"] == b"get":
            raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: nobody")
        after = json.loads(inputs["options"]).get("after")
        return {"result": json.dumps({"speakers": [] if after else [{"name": "bob"}]}).encode()}

    triton.answer = answer
    http = serve(triton.url, api_keys_file=keys, default_voice="casual_male")
    for key in (ALICE, DESK):
        first = http.get("/v1/audio/voices", headers=bearer(key)).json()
        assert first["voices"] == ["bob", "casual_male"] and first["default_voice"] == "casual_male"
        assert first["preset_voices"] == [
            {"name": "casual_male", "model": "voxtral", "registered": False},
            {"name": "Bob", "model": "voxtral", "registered": True},
        ]
        behind = http.get("/v1/audio/voices?after=bob", headers=bearer(key)).json()
        assert behind["voices"] == behind["preset_voices"] == [] and behind["default_voice"] == "casual_male"
