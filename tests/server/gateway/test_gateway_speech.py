"""Speech over HTTP in front of the real server: sources of the voice, formats, what it costs to leave."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import subprocess
import sys
import time
from http.client import HTTPConnection
from typing import Any

import av
import httpx2
import numpy as np
import pytest
from voice_clone_client import Client, pcm16
from voice_clone_gateway.audio import FORMATS

from perf.bench.gateway_process import Gateway
from tests.support.servers.server_metrics import ended_streams, metric, until_cancelled
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.share("servers")

TEXT = "Good morning."


def body(voice: str | None, **more: Any) -> dict[str, Any]:
    """A short request whose audio is the same each time."""
    asked = {"input": TEXT, "voice": voice, "seed": 4, "max_new_tokens": 12, **more}
    return {name: value for name, value in asked.items() if value is not None}


def say(http: httpx2.Client, voice: str | None, **more: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """PCM and info of a request that succeeds."""
    answer = http.post("/v1/audio/speech", json=body(voice, response_format="pcm", **more))
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, "<i2").astype(int), json.loads(answer.headers["x-speech-info"])


def test_ways_to_name_a_voice(
    http: httpx2.Client, client: Client, voice: str, reference_clip: bytes, reference_text: str
) -> None:
    url = f"data:audio/wav;base64,{base64.b64encode(reference_clip).decode()}"
    expected, info = say(http, voice)
    assert info["mode"] == "icl" and info["seed"] == 4
    for given in (
        {"speaker": voice},
        {"voice": {"id": voice.lower()}},
        {"voice": voice, "speaker": voice},
        {"ref_audio": url, "ref_text": reference_text},
        {"reference_audio": url, "reference_text": reference_text},
    ):
        got, info = say(http, **{"voice": None, **given})
        assert info["mode"] == "icl"
        assert len(got) == len(expected) and np.abs(got - expected).max() <= 2
    x_vector, info = say(http, voice, x_vector_only_mode=True)
    assert info["mode"] == "x_vector"
    embedding = client.speaker_embedding(voice)
    exported = http.get(f"/v1/audio/voices/{voice}/export").content
    prompt, info = say(http, None, voice_prompt=base64.b64encode(exported).decode())
    assert info["cache"] == "none" and "voice" not in info
    assert len(prompt) == len(expected) and np.abs(prompt - expected).max() <= 2
    direct, _ = say(http, None, speaker_embedding=[float(value) for value in embedding])
    assert len(direct) == len(x_vector) and np.abs(direct - x_vector).max() <= 2


@pytest.mark.parametrize("name", FORMATS)
def test_formats(http: httpx2.Client, voice: str, name: str) -> None:
    pcm, _ = say(http, voice)
    streamed = http.post("/v1/audio/speech", json=body(voice, response_format=name))
    whole = http.post("/v1/audio/speech", json=body(voice, response_format=name, stream=False))
    for answer in (streamed, whole):
        assert answer.status_code == 200 and answer.content
        assert answer.headers["content-type"].startswith(FORMATS[name].base_type)
    assert streamed.headers["transfer-encoding"] == "chunked"
    assert whole.headers["content-length"] == str(len(whole.content))
    if name in ("wav", "flac"):
        for answer in (streamed, whole):
            with av.open(io.BytesIO(answer.content)) as file:
                frames = [frame.to_ndarray()[0] for frame in file.decode(audio=0)]
            samples = np.concatenate(frames).astype(int)
            assert len(samples) == len(pcm) and np.abs(samples - pcm).max() <= 2


def test_rate_and_speed(http: httpx2.Client, voice: str) -> None:
    plain, _ = say(http, voice)
    slow, _ = say(http, voice, speed=0.5)
    low, _ = say(http, voice, sample_rate=8000)
    assert len(slow) == 2 * len(plain) and len(low) == round(len(plain) / 3)
    answer = http.post("/v1/audio/speech", json=body(voice, response_format="pcm", sample_rate=44100))
    assert answer.headers["content-type"] == "audio/pcm;rate=44100"


def test_a_long_text_is_one_stream(http: httpx2.Client, voice: str) -> None:
    sentence = "The harbour was quiet in the morning, and the boats lay still on the silver water. "
    pcm, info = say(http, voice, input=sentence * 5, max_new_tokens=3, stream=False)
    assert info["sentences"] == 5 and info["frames"] * 1920 == len(pcm)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": 3}, "input"),
        ({"voice": 3}, "voice"),
        ({"voice": {"name": "x"}}, "voice"),
        ({"speaker": "somebody"}, None),
        ({"response_format": "wma"}, "response_format"),
        ({"sample_rate": 11025}, "sample_rate"),
        ({"response_format": "opus", "sample_rate": 22050}, None),
        ({"response_format": "opus", "sample_rate": 44100}, None),
        ({"speed": 0.1}, "speed"),
        ({"speed": "1"}, "speed"),
        ({"stream": False, "stream_format": "sse"}, None),
        ({"task_type": "Song"}, "task_type"),
        ({"task_type": "CustomVoice", "model": "qwen3_tts"}, "task_type"),
        ({"word_timestamps": True}, "word_timestamps"),
        ({"language": "Klingon"}, None),
        ({"seed": -1}, "seed"),
        ({"max_new_tokens": 0}, "max_frames"),
        ({"max_new_tokens": 2**31}, "max_frames"),
        ({"temperature": 0}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"ref_text": "hello"}, None),
        ({"speaker_embedding": [1.0]}, None),
        ({"voice": None, "speaker_embedding": [1.0, 2.0]}, None),
        ({"voice": None, "speaker_embedding": []}, "speaker_embedding"),
        ({"voice": None}, None),
        ({"voice": None, "ref_audio": "data:audio/wav;base64,AAAA"}, None),
        ({"voice": None, "ref_audio": "/etc/passwd"}, "reference_audio"),
        ({"voice": None, "ref_audio": "file:///etc/passwd"}, "reference_audio"),
        ({"ref_txt": "typo"}, "ref_txt"),
        ({"options": [1]}, "options"),
        ({"options": {"no such": 1}}, None),
        ({"options": {"subtalker_temperature": 0}}, None),
        ({"subtalker_top_k": 5}, "subtalker_top_k"),
    ],
)
def test_a_wrong_request(http: httpx2.Client, voice: str, wrong: dict[str, Any], param: str | None) -> None:
    answer = http.post("/v1/audio/speech", json=body(**{"voice": voice, **wrong}))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and (param is None or error["param"].startswith(param))
    assert len(error["message"]) > 15 and "pydantic" not in error["message"]


def test_options_of_the_family(http: httpx2.Client, client: Client, voice: str) -> None:
    options = {"subtalker_do_sample": True, "subtalker_temperature": 1.5, "subtalker_top_k": 20}
    spoken, _ = say(http, voice, options=options, do_sample=True)
    direct, _ = client.speak(TEXT, voice=voice, seed=4, max_frames=12, do_sample=True, options=options).read()
    pcm = np.frombuffer(pcm16(direct), "<i2").astype(int)
    assert len(spoken) == len(pcm) and np.abs(spoken - pcm).max() <= 2
    plain, _ = say(http, voice, do_sample=True)
    assert len(plain) != len(spoken) or np.abs(spoken - plain).max() > 2
    answer = http.post("/v1/audio/speech", json=body(voice, options={"no such": 1}))
    for name in ("subtalker_temperature", "subtalker_top_k", "subtalker_top_p", "subtalker_do_sample"):
        assert name in answer.json()["error"]["message"], "the error lists what the family knows"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff", b'{"input": NaN}', b"[" * 100_000])
def test_a_body_that_is_no_json_object(http: httpx2.Client, content: bytes) -> None:
    answer = http.post("/v1/audio/speech", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


def idle(server: TritonServer, gateway: Gateway) -> bool:
    return metric(server, "talker_live_streams") == 0 and gateway.metric("live_speeches") == 0


@pytest.mark.parametrize("more", [{}, {"stream_format": "sse"}, {"stream": False}])
def test_a_client_that_leaves_frees_the_talker(
    server: TritonServer, gateway: Gateway, voice: str, more: dict[str, Any]
) -> None:
    until(lambda: idle(server, gateway))
    asked = body(voice, input="The boats lay still on the silver water.", seed=2, max_new_tokens=4000, do_sample=True)
    asked |= more

    def leave() -> int:
        with httpx2.stream("POST", f"{gateway.url}/v1/audio/speech", json=asked, timeout=60) as answer:
            next(answer.iter_raw())
        return 1

    if more.get("stream") is False:  # one sentence might end before the client has left
        before = sum(ended_streams(server).values())
        asked["input"] = " ".join([asked["input"]] * 100)
        with contextlib.closing(HTTPConnection(gateway.url.removeprefix("http://"))) as leaver:
            leaver.request("POST", "/v1/audio/speech", json.dumps(asked), {"Content-Type": "application/json"})
            # Not the talker's metric: it may lag behind all sentences of a fast machine.
            until(lambda: gateway.metric("live_speeches") > 0)
            time.sleep(0.3)  # some sentences
        until(lambda: idle(server, gateway))
        until(lambda: sum(ended_streams(server).values()) > before)
        assert sum(ended_streams(server).values()) - before < 100, "all sentences were spoken"
    else:
        until_cancelled(server, leave)
    until(lambda: idle(server, gateway))


def test_a_speech_by_its_id(http: httpx2.Client, server: TritonServer, gateway: Gateway, voice: str) -> None:
    answer = http.post("/v1/audio/speech", json=body(voice, response_format="pcm"))
    path = f"/v1/audio/speech/{answer.headers['x-request-id']}"
    ended = http.get(path).json()
    assert ended["status"] == "finished" and ended["finish_reason"] in ("stop", "length") and ended["error"] is None
    assert ended["seconds"] == pytest.approx(len(answer.content) / 2 / 24000, abs=0.001)
    assert 0 < ended["first_audio_ms"] <= ended["total_ms"]

    long = " ".join(["The boats lay still on the silver water."] * 40)  # it must not end before it is left
    asked = body(voice, input=long, max_new_tokens=4000, do_sample=True)
    with http.stream("POST", "/v1/audio/speech", json=asked) as begun:
        path = f"/v1/audio/speech/{begun.headers['x-request-id']}"
    until(lambda: http.get(path).json()["status"] == "cancelled")
    until(lambda: idle(server, gateway))
    refused = http.post("/v1/audio/speech", json=body("somebody"))
    failed = http.get(f"/v1/audio/speech/{refused.headers['x-request-id']}").json()
    assert failed["status"] == "failed" and failed["error"]["code"] == "voice_not_found"


KILLED = """
import httpx2, json, sys
with httpx2.stream("POST", sys.argv[1] + "/v1/audio/speech", content=sys.argv[2],
                   headers={"Content-Type": "application/json"}, timeout=60) as answer:
    next(answer.iter_raw())
    print("speaking", flush=True)
    sys.stdin.read()
"""


def test_killed_clients_free_their_slots(
    server: TritonServer, gateway: Gateway, voice: str, http: httpx2.Client
) -> None:
    asked = json.dumps(body(voice, input="The boats lay still on the silver water.", max_new_tokens=4000))
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", KILLED, gateway.url, asked], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    for process in clients:
        with process:
            assert process.stdout is not None and process.stdout.readline() == b"speaking\n"
            process.kill()
    until(lambda: idle(server, gateway))
    say(http, voice)


def test_health_and_metrics(http: httpx2.Client, server: TritonServer, gateway: Gateway, voice: str) -> None:
    assert http.get("/health").json() == {"status": "ready", "jobs": "ready"}
    until(lambda: idle(server, gateway))
    before = gateway.metric("first_audio_seconds_count"), gateway.metric("audio_seconds_total")
    pcm, _ = say(http, voice)
    until(lambda: gateway.metric("first_audio_seconds_count") == before[0] + 1)
    until(lambda: gateway.metric("audio_seconds_total") == pytest.approx(before[1] + len(pcm) / 24000))
    assert 'route="/v1/audio/speech",status="200"' in http.get("/metrics").text
    assert "/v1/nothing-counted" not in http.get("/metrics").text
