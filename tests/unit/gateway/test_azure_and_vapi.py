"""The calls of Azure's speech API, as Open WebUI and LiveKit make them, and Vapi's request to a voice of one's own."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import soundfile
from voice_clone_gateway.vendors.azure import format_of

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import Server
from tests.support.doubles.voice_book import VoiceBook

KEY = "ann-has-a-key-of-some-length"
SPEECH, LIST, VAPI = "/cognitiveservices/v1", "/cognitiveservices/voices/list", "/vapi/voice-request"
WAV = {"X-Microsoft-OutputFormat": "riff-16khz-16bit-mono-pcm"}


@pytest.fixture
def http(triton: Server, serve: Serve, tmp_path: Path) -> Iterator[httpx2.Client]:
    VoiceBook(triton, ("ada", "ann"), ("bert", "bob"), ("house", ""))
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} speak name=ann owner\n")
    client = serve(triton.url, api_keys_file=str(keys), default_voice="house")
    client.headers["Ocp-Apim-Subscription-Key"] = KEY
    yield client


def ssml(text: str, voice: str = "ada", language: str = "en-US") -> str:
    return (
        f'<speak version="1.0" xmlns="http://www.w3.org/2001/10/synthesis" xmlns:mstts="https://www.w3.org/2001/mstts"'
        f' xml:lang="{language}"><voice name="{voice}">{text}</voice></speak>'
    )


def test_speech(http: httpx2.Client, triton: Server) -> None:
    text = ssml(
        '<mstts:express-as style="sad"><prosody rate="+20%" pitch="0%">Good &amp; bad.</prosody></mstts:express-as>'
    )
    answer = http.post(SPEECH, content=text, headers={**WAV, "Content-Type": "application/ssml+xml"})
    assert answer.status_code == 200 and "X-Speech-Warning" not in answer.headers
    assert soundfile.info(io.BytesIO(answer.content)).samplerate == 16000
    asked = triton.speeches[-1][1]
    assert (asked["text"], asked["voice"], asked["style"]) == (b"Good & bad.", b"ada", b"sad,neutral")


def test_a_voice_of_azures_own_is_the_default_one(http: httpx2.Client, triton: Server) -> None:
    answer = http.post(SPEECH, content=ssml("Hello.", "en-US-JennyNeural"), headers=WAV)
    assert answer.status_code == 200 and triton.speeches[-1][1]["voice"] == b"house"


def test_list(http: httpx2.Client) -> None:
    assert {each["ShortName"] for each in http.get(LIST).json()} == {"ada", "house"}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("", "<speak>"),
        ("<speak>Hello.", "<speak>"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><speak>&b;</speak>', "DOCTYPE"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><speak>Hello.</speak>', "DOCTYPE"),
        ("<speak>&b;</speak>", "<speak>"),
        (ssml('<prosody rate="1000000%">Hello.</prosody>'), "rate"),
        (ssml('<prosody rate="9">Hello.</prosody>'), "rate"),
        (ssml(" "), "text"),
        (ssml("Hello.", "x" * 999), "voice name"),
        ("<speak>" + "<p>" * 9999, "2000 tags"),
        ("<speak>" + "<p/>" * 1000 + "<p>", "<speak>"),
        ("<speak>" + " " * (1 << 20) + "</speak>", "1048576 bytes"),
        ('<?xml version="1.0" encoding="zz"?><speak>Hello.</speak>', "<speak>"),
    ],
)
def test_documents_that_are_refused(http: httpx2.Client, body: str, word: str) -> None:
    answer = http.post(SPEECH, content=body, headers=WAV)
    error = answer.json()["error"]
    assert answer.status_code in (400, 404, 413) and word in error["message"] and error["code"]


def test_voices_pauses_and_rates(http: httpx2.Client, triton: Server) -> None:
    body = '<speak xml:lang="Ada"><voice name="ada">A <prosody rate="20%">B</prosody></voice><break time="1s"/>'
    answer = http.post(SPEECH, content=f'{body}<voice name="house">C</voice></speak>'.encode("utf-16"), headers=WAV)
    asked = [inputs for _, inputs in triton.speeches]
    assert [(each["text"], each["voice"]) for each in asked] == [(b"A", b"ada"), (b"B", b"ada"), (b"C", b"house")]
    assert not any("language" in each for each in asked) and "xml:lang" in answer.headers["X-Speech-Warning"]
    seconds = 0.24 + 0.24 / 1.2 + 1 + 0.24
    assert soundfile.info(io.BytesIO(answer.content)).frames == pytest.approx(seconds * 16000, abs=3)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("audio-24khz-160kbitrate-mono-mp3", ("mp3", 24000, 160000)),
        ("audio-48khz-192kbitrate-mono-mp3", ("mp3", 48000, 192000)),
        ("audio-16khz-16bit-32kbps-mono-opus", ("opus", 16000, 32000)),
        ("ogg-24khz-16bit-mono-opus", ("opus", 24000, None)),
        ("raw-22050hz-16bit-mono-pcm", ("pcm", 22050, None)),
        ("raw-8khz-8bit-mono-mulaw", ("mulaw", 8000, None)),
        ("riff-44100hz-16bit-mono-pcm", ("wav", 44100, None)),
        ("riff-8khz-8bit-mono-alaw", ("wav_alaw", 8000, None)),
    ],
)
def test_formats(name: str, values: tuple[Any, ...]) -> None:
    assert tuple(format_of(name).values()) == values


@pytest.mark.parametrize(
    "name", ["", "webm-24khz-16bit-mono-opus", "amr-wb-16000hz", "raw-1khz-16bit-mono-pcm", "x" * 999]
)
def test_formats_that_are_refused(http: httpx2.Client, name: str) -> None:
    answer = http.post(SPEECH, content=ssml("Hello."), headers={"X-Microsoft-OutputFormat": name})
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_vapi(http: httpx2.Client, triton: Server) -> None:
    message = {"type": "voice-request", "text": "Hello.", "sampleRate": 16000, "call": {"id": "1"}}
    del http.headers["Ocp-Apim-Subscription-Key"]
    answer = http.post(f"{VAPI}?voice=ada", json={"message": message}, headers={"X-Vapi-Secret": KEY})
    assert answer.status_code == 200 and answer.headers["content-type"] == "audio/pcm;rate=16000"
    assert triton.speeches[-1][1]["voice"] == b"ada" and len(answer.content) % 2 == 0
    assert http.post(VAPI, json={"message": message}).status_code == 401


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ({"type": "end-of-call-report"}, "voice-request"),
        ({"type": "voice-request", "text": "", "sampleRate": 16000}, "message"),
        ({"type": "voice-request", "text": "A", "sampleRate": 11025}, "sampleRate"),
        ({"type": "voice-request", "text": "A", "sampleRate": "fast"}, "message"),
        (None, "message"),
    ],
)
def test_messages_of_vapi_that_are_refused(http: httpx2.Client, message: Any, word: str) -> None:
    answer = http.post(VAPI, json={"message": message})
    assert answer.status_code == 400 and word in answer.json()["error"]["message"]
