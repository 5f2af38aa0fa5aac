"""POST /v1/audio/transcriptions, and uploads whose words the server writes down; against the double of Triton."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from openai import OpenAI
from voice_clone_client.clips import readable
from voice_clone_gateway.http.speech_first import AfterSpeech

from tests.support.doubles.command_line import VOICE
from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import Failure, Server
from tests.support.official.phone_clips import phone_clip
from tests.support.waiting import WAIT, until

PATH = "/v1/audio/transcriptions"
WORDS = "said in the clip"


def hears(triton: Server) -> None:
    triton.answer = lambda inputs: (
        {"result": json.dumps(VOICE).encode()} if "operation" in inputs else {"text": WORDS.encode()}
    )


def upload(http: httpx2.Client, transcribe: str = "true", **options: Any) -> httpx2.Response:
    form, clip = {"name": "Ada", "consent": "by mail", "transcribe": transcribe}, {"audio_sample": ("a.wav", b"RIFF")}
    return http.post("/v1/audio/voices", data=form, files=clip, **options)


def test_the_words_of_a_clip(shared: Shared, caplog: pytest.LogCaptureFixture) -> None:
    triton, http = shared
    hears(triton)
    caplog.set_level(logging.DEBUG)
    sound = phone_clip("voice.m4a")
    reply = http.post(PATH, files={"file": ("voice.m4a", sound, "audio/mp4")}, data={"model": "whisper-1"})
    assert (reply.status_code, reply.json()) == (200, {"text": WORDS})
    assert triton.calls[-1] == ("transcriber", {"audio": readable(sound)})
    form = {"response_format": "text", "language": "en"}
    reply = http.post(PATH, files={"file": ("a.wav", b"RIFF")}, data=form)
    assert (reply.text, reply.headers["content-type"]) == (WORDS, "text/plain; charset=utf-8")
    assert triton.asked[-1] == ("transcriber", {"audio": b"RIFF", "language": b"en"})
    assert WORDS not in caplog.text


def test_openai_s_client(shared: Shared) -> None:
    triton, http = shared
    hears(triton)
    with OpenAI(base_url=f"{http.base_url}/v1", api_key="none") as openai:
        assert openai.audio.transcriptions.create(model="whisper-1", file=("a.wav", b"RIFF")).text == WORDS
        asked: Any = {"model": "gpt-4o-transcribe", "file": ("a.wav", b"RIFF"), "response_format": "text"}
        assert openai.audio.transcriptions.create(**asked) == WORDS


@pytest.mark.parametrize(
    ("form", "words"),
    [({"response_format": "srt"}, "'json' or 'text'"), ({"temperature": "0"}, "temperature"), ({}, "file")],
)
def test_what_is_refused(form: dict[str, str], words: str, shared: Shared) -> None:
    triton, http = shared
    files = [("file", ("a.wav", b"RIFF"))] if form else [("model", (None, b"whisper-1"))]
    reply = http.post(PATH, data=form, files=files)
    assert reply.status_code == 400 and words in reply.text
    assert triton.asked == []


def test_an_upload_whose_words_are_written_down(shared: Shared) -> None:
    triton, http = shared
    hears(triton)
    form = {"name": "Ada", "consent": "by mail", "transcribe": "true"}
    files = [("audio_sample", ("a.wav", clip)) for clip in (b"first", b"second")]
    assert http.post("/v1/audio/voices", data=form, files=files).status_code == 200
    assert [inputs["audio"] for _, inputs in triton.asked] == [b"first", b"firstsecond"]
    assert triton.asked[-1][1]["reference_text"] == WORDS.encode()
    for more in ({"reference_text": "mine"}, {"ref_text": "mine"}, {"speaker_embedding": "[1, 2]"}):
        reply = http.post("/v1/audio/voices", data=form | more, files=[] if "speaker_embedding" in more else files)
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "transcribe"
    designed = {"name": "Ada", "prompt": "an old man", "transcribe": "true"}
    reply = http.post("/v1/audio/voices", data=designed)
    assert reply.status_code == 400 and "leave out transcribe" in reply.json()["error"]["message"]
    assert len(triton.asked) == 2
    triton.answer = lambda inputs: {"text": b" "}
    reply = http.post("/v1/audio/voices", data=form, files=files)
    assert reply.status_code == 400 and "no words were recognised" in reply.json()["error"]["message"]
    assert len(triton.asked) == 3, "nothing is stored"


def test_words_are_written_down_without_a_place_for_longer_work(
    triton: Server, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, seen = 0, list[tuple[str, int]]()

    @asynccontextmanager
    async def turn(self: AfterSpeech) -> AsyncIterator[None]:
        nonlocal turns
        turns += 1
        yield
        turns -= 1

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        stores = inputs.get("operation") == b"upload"
        if stores or "audio" in inputs:
            seen.append(("upload" if stores else "transcribe", turns))
        return {"result": json.dumps(VOICE).encode()} if "operation" in inputs else {"text": WORDS.encode()}

    monkeypatch.setattr(AfterSpeech, "turn", turn)
    triton.answer = answer
    assert upload(serve(triton.url)).status_code == 200
    assert seen == [("transcribe", 0), ("upload", 1)]


def test_a_client_that_leaves_ends_the_upload(triton: Server, serve: Serve, tmp_path: Path) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if "operation" in inputs:
            return {"result": json.dumps(VOICE).encode()}
        asked.set()
        assert go_on.wait(WAIT)
        return {"text": WORDS.encode()}

    triton.answer = answer
    audit = tmp_path / "audit"
    http = serve(triton.url, audit_log=str(audit))
    with pytest.raises(httpx2.ReadTimeout):
        upload(http, timeout=httpx2.Timeout(WAIT, read=1.0))
    assert asked.wait(WAIT)
    until(lambda: audit.exists() and bool(audit.read_text()))
    assert json.loads(audit.read_text())["outcome"] == "client_gone"
    go_on.set()
    assert upload(http, transcribe="false").status_code == 200
    stored = [inputs for _, inputs in triton.asked if inputs.get("operation") == b"upload"]
    assert len(stored) == 1 and "reference_text" not in stored[0]


def test_a_server_without_the_model(shared: Shared) -> None:
    triton, http = shared

    def unknown(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'transcriber' is not found")

    triton.answer = unknown
    reply = http.post(PATH, files={"file": ("a.wav", b"RIFF")})
    assert reply.status_code == 501 and "serve --with transcriber" in reply.json()["error"]["message"]
