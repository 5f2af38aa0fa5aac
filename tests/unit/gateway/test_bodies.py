"""What one caller sends holds no other caller up: its size, its parts, its memory, its names."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import websockets.sync.client
from voice_clone_client import Overloaded
from voice_clone_client.callers import on_behalf_of
from voice_clone_gateway.http.outgoing import Resolver
from voice_clone_gateway.http.uvicorn_protocols import MAX_FRAGMENTS
from websockets.exceptions import ConnectionClosed

from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import Server
from tests.support.waiting import WAIT

JSON = {"Content-Type": "application/json"}
SPEECH = "/v1/audio/speech"
MANY = b'{"input": "x", "voice": "ada"' + b"".join(b', "f%d": 1' % index for index in range(200_000)) + b"}"
NAME = b'{"input": "x", "' + b"n" * 10_000_000 + b'": 1}'
BATCH = json.dumps({"items": [{f"f{field}": 1 for field in range(5000)} for _ in range(32)]}).encode()
DEEP = b'{"options": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"


@pytest.mark.parametrize(
    ("path", "body"),
    [(SPEECH, MANY), (SPEECH, NAME), (f"{SPEECH}/batch", BATCH), (SPEECH, DEEP), (SPEECH, b"[" * 10**6)],
    ids=["fields", "name", "batch", "deep", "open"],
)
def test_a_body_of_many_parts_is_refused_before_it_is_parsed(
    shared: Shared, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton, http = shared
    parsed: list[int] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text, **more: parsed.append(len(text)) or loads(text, **more))
    answer = http.post(path, content=body, headers=JSON)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "too_complex"
    assert len(answer.content) < 500, "nothing of the body is echoed"
    assert max(parsed, default=0) < 100_000 and triton.asked == []


UTF_16 = ('{"\u0122": 1' + "".join(f', "f{index}": 1' for index in range(200_000)) + "}").encode("utf-16-le")
"""The byte 0x22 of U+0122 looks like the beginning of a string, in which fields would not count."""
SLASHES = b'{"input": "' + (b"\\" * 60_000 + b"xx") * 100 + b'"}'
QUOTES = b'{"input": "' + b'\\"' * 1_000_000 + b'"}'
STRINGS = b'""' * 1_000_000


BODIES = {"many": MANY, "utf-16": UTF_16, "slashes": SLASHES, "quotes": QUOTES, "strings": STRINGS}
KINDS = [
    "application/json",
    "application/octet-stream+json",
    "application/json; charset=utf-16",
    "APPLICATION/x+JSON;a",
]
USUAL = {*((KINDS[0], body) for body in BODIES), *((kind, "utf-16") for kind in KINDS)}  # each body, and each type


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(kind, body, marks=[] if (kind, body) in USUAL else pytest.mark.thorough)
        for kind in KINDS
        for body in BODIES
    ],
)
def test_the_bounds_hold_for_any_type(shared: Shared, kind: str, body: str) -> None:
    _, http = shared
    for path in (SPEECH, f"{SPEECH}/batch"):
        answer = http.post(path, content=BODIES[body], headers={"Content-Type": kind})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "too_complex"


FORMS = ("/v1/audio/voices", "/v1/audio/detect", "/v1/audio/transcriptions")


def test_every_route_with_a_body_parses_it_within_bounds(shared: Shared) -> None:
    _, http = shared
    paths = http.get("/openapi.json").json()["paths"]
    with_body = [path for path, entry in paths.items() if "requestBody" in entry.get("post", {})]
    assert len(with_body) == 9
    for path in with_body:
        if path not in (*FORMS, "/v1/audio/bundle"):  # which is passed on
            answer = http.post(path, content=MANY, headers={"Content-Type": "application/octet-stream+json"})
            assert answer.json()["error"]["code"] == "too_complex", path


LATIN = ("invalid_encoding", "in 'latin1'; encode it as UTF-8")


@pytest.mark.parametrize(
    ("body", "headers", "status", "code", "words"),
    [
        ('{"input": "Zoë", "voice": "ada"}'.encode("latin-1"), {}, 400, "invalid_encoding", "not UTF-8 (byte 13)"),
        ('{"input": "Zoe", "voice": "ada"}'.encode("utf-16"), {}, 400, "invalid_encoding", "not UTF-8"),
        (b'{"input": "\xed\xa0\x80", "voice": "ada"}', {}, 400, "invalid_encoding", "not UTF-8"),
        (b"\x1f\x8b\x08", {"Content-Encoding": "gzip"}, 415, "compressed_body", "compressed (gzip); send it as it is"),
        (b"{}", {"Content-Encoding": "identity, br"}, 415, "compressed_body", "compressed"),
        (b'{"input": "x", "input": "y"}', {}, 400, "duplicate_field", "'input' twice"),
        (b'{"input": "x", "options": {"a": 1, "\\u0061": 2}}', {}, 400, "duplicate_field", "'a' twice"),
        (b'{"seed": ' + b"1" * 5000 + b"}", {}, 400, "invalid_json", "too many digits"),
        (b'{"input": ', {}, 400, "invalid_json", "no JSON"),
        ('{"input": "Ã¼"}'.encode("latin-1"), {"Content-Type": "application/json; charset=latin1"}, 415, *LATIN),
        (b"", {}, 400, "invalid_argument", "no body"),
        (b'{"input": ""}', {}, 400, "invalid_argument", "it should have at least 1 character"),
        (b'{"input": "\\ud800"}', {}, 400, "invalid_argument", "lone surrogate"),
        (b'{"input": "x", "task_type": []}', {}, 400, "invalid_argument", "task_type: it must be one of"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(
    shared: Shared, body: bytes, headers: dict[str, str], status: int, code: str, words: str
) -> None:
    triton, http = shared
    answer = http.post(SPEECH, content=body, headers={**JSON, **headers})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code) and words in error["message"]
    assert triton.asked == []


def test_a_byte_order_mark_and_identity_pass(shared: Shared) -> None:
    triton, http = shared
    body = '{"input": "Zoë", "voice": "ada"}'.encode("utf-8-sig")
    answer = http.post(SPEECH, content=body, headers={**JSON, "Content-Encoding": "identity"})
    assert answer.status_code == 200 and triton.speeches[-1][1]["text"].decode() == "Zoë"


def form(*parts: tuple[str, bytes]) -> bytes:
    """A multipart form with the boundary b."""
    head = '--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n'
    return b"".join((head % name).encode() + value + b"\r\n" for name, value in parts) + b"--b--\r\n"


MULTIPART = "multipart/form-data; boundary=b"
URLENCODED = "application/x-www-form-urlencoded"
FILE = 2 * b'--b\r\nContent-Disposition: form-data; name="%s"; filename="a"\r\n\r\nx\r\n' + b"--b--\r\n"
GOOD = (("name", b"Eve"), ("consent", b"yes"), ("speaker_embedding", b"[1.0, 2.0]"))


@pytest.mark.parametrize(
    ("kind", "body", "status", "words"),
    [
        (MULTIPART, form(*GOOD), 200, ""),
        (URLENCODED, b"name=Eve&consent=yes&speaker_embedding=%5B1.0%5D", 200, ""),
        (MULTIPART, form(*GOOD, ("name", b"Bob")), 400, "name: the form has this field twice"),
        (URLENCODED, b"name=Eve&consent=yes&name=Bob", 400, "name: the form has this field twice"),
        (MULTIPART, FILE % (b"audio_sample", b"reference_text"), 400, "two files, audio_sample and reference_text"),
        (MULTIPART, form(*GOOD)[:-5], 400, "cut off"),
        ("application/json", b'{"name": "Eve", "consent": "yes"}', 400, "must be a form"),
        (MULTIPART, b"--b\r\nX: y\r\n\r\nz\r\n--b--\r\n", 400, "has no name"),
        (MULTIPART, form(*((f"f{index}", b"x") for index in range(17))), 400, "Maximum number of fields is 16"),
        (URLENCODED, b"&".join(b"a%d=1" % index for index in range(17)), 400, "at most 16"),
        (URLENCODED, b"&" * 1_000_000, 400, "at most 16"),
        (URLENCODED, b"name=" + b"%41" * 500_000, 413, "at most 1048576"),
        (f"{MULTIPART}; charset=punycode", form(("name", b"a-" + b"aaaaab" * 150_000)), 415, "encode it as UTF-8"),
        (f"{MULTIPART}; charset=utf-16", form(*GOOD), 415, "encode it as UTF-8"),
        (f"{MULTIPART}; charset=UTF-8", form(*GOOD), 200, ""),
        (MULTIPART, form(*GOOD[:2], (GOOD[2][0], b"[" + b"0," * 400_000 + b"0]")), 400, "more than 100000 values"),
        (MULTIPART, form(*GOOD[:2], (GOOD[2][0], b"[NaN]")), 400, "finite numbers"),
    ],
)
def test_forms_are_bounded(shared: Shared, kind: str, body: bytes, status: int, words: str) -> None:
    triton, http = shared
    triton.answer = lambda inputs: {"result": b'{"name": "Eve"}'}
    answer = http.post("/v1/audio/voices", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status and words in answer.text
    assert len(triton.asked) == (status == 200)


def part(head: bytes, value: bytes, *others: tuple[str, bytes]) -> bytes:
    """A multipart form of a part with this head, a consent and others."""
    first = b"--b\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + value + b"\r\n"
    return first + form(("consent", b"yes"), *others)


@pytest.mark.parametrize(
    ("kind", "body", "param"),
    [
        (MULTIPART, form(("name", b"Gr\xfc"), ("consent", b"yes")), "name"),
        (MULTIPART, form(("name", b"Eve"), ("reference_text", "При".encode("cp1251"))), "reference_text"),
        (MULTIPART, form(("name", b"Eve"), ("reference_text", "При".encode("utf-16"))), "reference_text"),
        (f"{MULTIPART}; charset=us-ascii", form(("name", b"Gr\xfc")), "name"),
        (MULTIPART, part(b'name="name"\r\nContent-Type: text/plain; charset=iso-8859-1', b"Gr\xfc"), "name"),
        (MULTIPART, part(b'name="name"\r\nContent-Type: text/plain; charset=iso-8859-1', "Grü".encode()), "name"),
        (MULTIPART, part(b'name="name"\r\nContent-Type: text/plain; charset=utf-16', b"G\0r\0"), "name"),
        (MULTIPART, part(b'name="name"\r\nContent-Transfer-Encoding: base64', b"RXZl"), "name"),
        (
            MULTIPART,
            part(b'name="file"; filename="a.wav"\r\nContent-Transfer-Encoding: quoted-printable', b"="),
            "file",
        ),
        (MULTIPART, part(b'name="n\xe4me"', b"Eve"), None),
        (MULTIPART, part(b'name="n\xe4me"; filename="a.wav"', b"RIFF"), None),
        (URLENCODED, b"consent=yes&name=Gr%fc", "name"),
        (URLENCODED, b"consent=yes&name=Gr\xfc", "name"),
        (URLENCODED, b"n%e4me=Eve&consent=yes", None),
    ],
)
def test_a_form_in_another_encoding_is_refused(shared: Shared, kind: str, body: bytes, param: str | None) -> None:
    triton, http = shared
    for path in FORMS:
        answer = http.post(path, content=body, headers={"Content-Type": kind})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_encoding", param)
    assert triton.asked == []


@pytest.mark.parametrize("charset", [b"", b"; charset=utf-8", b'; charset="UTF-8"'])
def test_a_part_in_utf_8_is_read_as_it_is(shared: Shared, charset: bytes) -> None:
    triton, http = shared
    triton.answer = lambda inputs: {"result": b'{"name": "Eve"}'}
    head = b'name="name"\r\nContent-Type: text/plain' + charset
    for value in ("Grüße 世", "\ufeffGrüße 世"):
        body = part(head, value.encode())
        assert http.post("/v1/audio/voices", content=body, headers={"Content-Type": MULTIPART}).status_code == 200
        assert triton.calls[-1][1]["name"].decode() == "Grüße 世"


@pytest.mark.parametrize("file_name", [b'filename="Gr\xfc.wav"', b"filename*=utf-8''Gr%C3%BC.wav", b'filename="x"'])
def test_the_name_of_a_file_does_not_matter(shared: Shared, file_name: bytes) -> None:
    triton, http = shared
    triton.answer = lambda inputs: {"result": b'{"name": "Eve"}'}
    body = part(b'name="audio_sample"; ' + file_name, b"RIFF", ("name", b"Eve"))
    assert http.post("/v1/audio/voices", content=body, headers={"Content-Type": MULTIPART}).status_code == 200
    assert triton.calls[-1][1]["audio"] == b"RIFF"


def test_a_file_that_was_not_chosen_is_none(shared: Shared) -> None:
    triton, http = shared
    triton.answer = lambda inputs: {"result": b'{"name": "Eve"}'}
    empty = b'--b\r\nContent-Disposition: form-data; name="audio_sample"; filename=""\r\n\r\n\r\n'
    answer = http.post("/v1/audio/voices", content=empty + form(*GOOD), headers={"Content-Type": MULTIPART})
    assert answer.status_code == 200 and "audio" not in triton.calls[-1][1]


@pytest.mark.parametrize(
    ("path", "param"),
    [("voices?after=%fc", "after"), ("voices?%fc=1", None), ("voices/%fc", None), ("speech/stream?x=%fc", "x")],
)
def test_a_url_in_another_encoding_is_refused(shared: Shared, path: str, param: str | None) -> None:
    error = shared[1].get(f"/v1/audio/{path}").json()["error"]
    assert (error["code"], error["param"]) == ("invalid_encoding", param)


@pytest.mark.parametrize("body", [MANY, NAME, SLASHES], ids=["fields", "name", "slashes"])
def test_a_message_of_many_parts_is_refused_before_it_is_parsed(shared: Shared, body: bytes) -> None:
    url = str(shared[1].base_url).replace("http", "ws")
    with websockets.sync.client.connect(f"{url}{SPEECH}/stream", proxy=None, max_size=None) as connection:
        connection.send(b'{"type": "session.config", ' + body[1:], text=True)
        error = json.loads(connection.recv(WAIT))["error"]
        assert error["code"] == "too_complex" and len(error["message"]) < 200


def test_a_message_in_many_frames_ends_the_connection(shared: Shared) -> None:
    url = str(shared[1].base_url).replace("http", "ws")
    for frames, accepted in ((MAX_FRAGMENTS - 9, True), (MAX_FRAGMENTS + 9, False), (5 * MAX_FRAGMENTS, False)):
        text = '{"type": "session.config", "voice": "ada"}'.ljust(frames)
        with websockets.sync.client.connect(f"{url}{SPEECH}/stream", proxy=None) as connection:
            try:
                connection.send(iter(text))
                connection.send('{"type": "unknown"}')
                answer = connection.recv(WAIT)
                assert accepted and "a message is" in answer
            except ConnectionClosed as closed:
                # While frames are on their way the system resets the connection: its last message may be lost.
                assert not accepted and (closed.rcvd is None or closed.rcvd.code == 1008)


def test_a_message_in_another_encoding_ends_the_connection(shared: Shared, caplog: pytest.LogCaptureFixture) -> None:
    url = str(shared[1].base_url).replace("http", "ws")
    with websockets.sync.client.connect(f"{url}{SPEECH}/stream", proxy=None) as connection:
        connection.send('{"type": "Grü"}'.encode("latin-1"), text=True)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(WAIT)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1007
        assert "not UTF-8" in closed.value.rcvd.reason
    assert not [record for record in caplog.records if record.exc_info]


@contextlib.contextmanager
def held(http: httpx2.Client, size: int) -> Iterator[socket.socket]:
    """A connection that has sent all of its body but the last byte."""
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30) as connection:
        head = f"POST {SPEECH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
        connection.sendall(head.encode() + b'{"voice": "ada", "input": "' + b"x" * (size - 30))
        yield connection


def answered(connection: socket.socket) -> bytes:
    connection.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        return connection.recv(4096)
    return b""


def test_a_name_of_combining_marks_delays_no_one(triton: Server, serve: Serve) -> None:
    """Unicode orders them, which takes hours for so many; the client gives up after 30 s."""
    triton.answer = lambda inputs: {"result": b'{"name": "Eve"}'}
    http = serve(triton.url, default_voice="Ada")
    name = "a" + "\u0301\u0316" * 1_000_000
    form = {"files": {"audio_sample": ("a.wav", b"RIFF")}, "data": {"name": name[:500_000], "consent": "yes"}}
    assert http.post("/v1/audio/voices", **form).status_code == 200
    assert triton.calls[-1][1]["name"].decode() == name[:500_000], "the server refuses it"
    for field in ("voice", "model", "language"):
        for value in (name, {"id": name}) if field == "voice" else (name,):
            answer = http.post(SPEECH, json={"input": "Hello.", "voice": "ada", field: value})
            assert answer.status_code == 400 and "256 characters" in answer.json()["error"]["message"]
            assert len(answer.content) < 500, "nothing of it is echoed"


def test_a_url_that_is_too_long(shared: Shared) -> None:
    url = "https://" + "a." * 2_000_000 + "example"
    answer = shared[1].post(SPEECH, json={"input": "Hello.", "reference_audio": url})
    assert answer.status_code == 400 and "at most 4096" in answer.json()["error"]["message"]


def test_silent_name_servers_delay_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = threading.Event()
    looked_up: list[str] = []

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        looked_up.append(host)
        silent.wait()
        return [(0, 0, 0, "", ("192.0.2.1", 443))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    async def test() -> None:
        resolver = Resolver(threads=3)
        waiting = [asyncio.create_task(resolver(f"name{index}", 443)) for index in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await resolver("fourth", 443)
        assert await asyncio.to_thread(lambda: "free") == "free", "other work has threads of its own"
        waiting[0].cancel()
        with pytest.raises(Overloaded):
            await resolver("fifth", 443)  # who gives up frees no thread
        with on_behalf_of("another caller"):
            other = asyncio.create_task(resolver("other", 443))
        await asyncio.sleep(0)
        silent.set()
        assert await other == ["192.0.2.1"], "a caller that has none is not refused"
        assert await asyncio.gather(*waiting[1:]) == [["192.0.2.1"]] * 2
        while resolver._gate.live:
            await asyncio.sleep(0.01)
        assert await resolver("sixth", 443) == ["192.0.2.1"]

    asyncio.run(test())
    assert sorted(looked_up[:4]) == ["name0", "name1", "name2", "other"] and looked_up[4:] == ["sixth"]
