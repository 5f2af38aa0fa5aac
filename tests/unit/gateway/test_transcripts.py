"""POST /v1/audio/transcriptions, and uploads whose words the server writes down; against the double of Triton."""

from __future__ import annotations

import json
import logging
from typing import Any

import grpc
import pytest
from openai import OpenAI
from voice_clone_client.clips import readable

from tests.support.doubles.command_line import VOICE
from tests.support.doubles.gateway_thread import Shared
from tests.support.doubles.triton_double import Failure, Server
from tests.support.official.phone_clips import phone_clip

PATH = "/v1/audio/transcriptions"
WORDS = "said in the clip"


def hears(triton: Server) -> None:
    triton.answer = lambda inputs: (
        {"result": json.dumps(VOICE).encode()} if "operation" in inputs else {"text": WORDS.encode()}
    )


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
    for more in ({"reference_text": "mine"}, {"speaker_embedding": "[1, 2]"}):
        reply = http.post("/v1/audio/voices", data=form | more, files=files if "reference_text" in more else [])
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "transcribe"
    assert len(triton.asked) == 2


def test_a_server_without_the_model(shared: Shared) -> None:
    triton, http = shared

    def unknown(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'transcriber' is not found")

    triton.answer = unknown
    reply = http.post(PATH, files={"file": ("a.wav", b"RIFF")})
    assert reply.status_code == 501 and "serve --with transcriber" in reply.json()["error"]["message"]
