"""A server with large chunks: the audio is the same, and a client that leaves ends its speech before the next chunk."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from voice_clone_client import Client

from tests.support.same_audio import is_same_audio
from tests.support.servers.server_metrics import metric
from tests.support.servers.talker_calls import Call
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

TEXT = "Every evening the boats came home, and the harbour filled with voices. " * 2
EMBEDDING = np.random.default_rng(0).normal(size=64).astype(np.float32)
FRAMES = 1600
FIRST, NEXT = 1, 1500  # frames of the first chunk and of the others
# Frames that may follow the first chunk: two after the cancel has reached the server, and what is made while the first
# chunk is on its way to the client and the cancel on its way back, however slow either of them is for a moment.
SOON = NEXT // 4
TRIES = 5  # a client that is held up for longer leaves too late, so the best of them counts


@pytest.fixture(scope="module")
def slow(endless_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server whose every frame costs as much as a full batch, so that a look after the streams is short beside it."""
    settings = {
        "VOICE_CLONE_CHUNK_FRAMES": f"{FIRST},{NEXT}",
        "VOICE_CLONE_MAX_CHUNK_FRAMES": str(NEXT),
        "VOICE_CLONE_DETERMINISTIC": "true",
        "VOICE_CLONE_MAX_STREAMS": "16",
        "VOICE_CLONE_MAX_LENGTH": "2048",
        "VOICE_CLONE_WARM_UP_SECONDS": "0.1",
    }
    folder = tmp_path_factory.mktemp("slow")
    voices, log = folder / "voices", folder / "log"
    options = ["--model-control-mode=explicit", "--load-model=qwen3_tts"]  # with its stages, without the encoders
    with TritonServer(endless_checkpoint, voices, log=log, options=options, environment=settings) as it:
        yield it
        with Client(it.url, model="qwen3_tts") as client:
            assert list(client.speak("Good morning.", speaker_embedding=EMBEDDING, max_frames=3))[-1].final
    assert "'qwen3_tts' (version 1) has" not in log.read_text(), "a request was never released"


def speech(**more: Any) -> dict[str, Any]:
    return {"text": TEXT, "speaker_embedding": EMBEDDING, "max_frames": np.array([FRAMES], np.int32), **more}


def a_cancelled_stream(server: TritonServer) -> None:
    call = Call(server, speech(), model="qwen3_tts")
    assert not call.next().as_numpy("final")[0]
    call.leave()


def a_closed_channel(server: TritonServer) -> None:
    client = Client(server.url, model="qwen3_tts")
    next(client.speak(TEXT, speaker_embedding=EMBEDDING, max_frames=FRAMES))
    client.close()


def a_killed_client(server: TritonServer) -> None:
    script = """
import sys
import numpy as np
from voice_clone_client import Client
embedding = np.array([float(value) for value in sys.argv[3].split()], np.float32)
client = Client(sys.argv[1], model="qwen3_tts")
for _ in client.speak(sys.argv[2], speaker_embedding=embedding, max_frames=int(sys.argv[4])):
    print("speaking", flush=True)
"""
    embedding = " ".join(map(str, EMBEDDING))
    command = [sys.executable, "-c", script, server.url, TEXT, embedding, str(FRAMES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"speaking\n"
        process.kill()


def a_closed_http_connection(server: TritonServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
    body = {"text": TEXT, "speaker_embedding": EMBEDDING.tolist(), "max_frames": FRAMES}
    connection.request("POST", "/v2/models/qwen3_tts/generate_stream", json.dumps(body))
    event = connection.getresponse().readline()
    assert event.startswith(b"data: ") and b'"final":false' in event
    connection.close()


def a_deadline(server: TritonServer) -> None:
    call = Call(server, speech(), model="qwen3_tts", timeout=3.0)
    answer = call.next()
    while not isinstance(answer, str):
        assert not answer.as_numpy("final")[0]
        answer = call.next()
    assert "Deadline Exceeded" in answer
    call.client.close()


def test_the_audio_is_that_of_small_chunks(slow: TritonServer, client: Client) -> None:
    greedy = {"do_sample": False, "options": {"subtalker_do_sample": False}}
    given: dict[str, Any] = {"speaker_embedding": EMBEDDING, "max_frames": 30, **greedy}
    small = list(client.speak("Every evening the boats came home.", **given))
    with Client(slow.url, model="qwen3_tts") as other:
        large = list(other.speak("Every evening the boats came home.", **given))
    assert [len(chunk.samples) // 1920 for chunk in large] == [FIRST, 29] and len(small) > 2
    got, expected = (np.concatenate([chunk.samples for chunk in chunks]) for chunks in (large, small))
    assert is_same_audio(got, expected)


Leave = Callable[[TritonServer], None]


@pytest.mark.parametrize(
    ("leave", "frames"),
    [
        (a_cancelled_stream, SOON),
        (a_closed_channel, SOON),
        (a_killed_client, SOON),
        (a_closed_http_connection, SOON),
        (a_deadline, NEXT - 1),  # it comes at any time before the next chunk
    ],
)
def test_the_stream_ends_before_its_next_chunk(slow: TritonServer, leave: Leave, frames: int) -> None:
    def made() -> float:
        """Frames of a stream that is left."""
        cancelled, before = (
            metric(slow, "talker_streams_total", reason="cancelled"),
            metric(slow, "talker_frames_total"),
        )
        ended = metric(slow, "code2wav_streams_ended_total", reason="cancelled")
        leave(slow)
        until(lambda: metric(slow, "talker_streams_total", reason="cancelled") == cancelled + 1)
        assert metric(slow, "talker_live_streams") == metric(slow, "talker_waiting_streams") == 0
        until(lambda: metric(slow, "code2wav_streams") == 0)
        until(lambda: metric(slow, "code2wav_streams_ended_total", reason="cancelled") == ended + 1)
        until(lambda: metric(slow, "code2wav_state_bytes", of="streams") == 0)
        return metric(slow, "talker_frames_total") - before

    assert any(made() <= FIRST + frames for _ in range(TRIES))


def test_all_at_once(slow: TritonServer) -> None:
    """More streams than are asked at one look."""
    made, cancelled = metric(slow, "talker_frames_total"), metric(slow, "talker_streams_total", reason="cancelled")
    calls = [Call(slow, speech(seed=np.array([n], np.uint64)), model="qwen3_tts") for n in range(12)]
    for call in calls:
        assert not call.next().as_numpy("final")[0]
    for call in calls:
        call.leave()
    until(lambda: metric(slow, "talker_streams_total", reason="cancelled") == cancelled + len(calls))
    assert metric(slow, "talker_frames_total") - made < len(calls) * NEXT
    until(lambda: metric(slow, "code2wav_streams") == 0)
