"""A server that marks its speech: the mark is found, nothing else changes, and no chunk waits for it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import Chunk, Client, InvalidArgument, Mark, Unsupported
from voice_clone_command import cli
from voice_clone_provenance.statements import Statement, find

from perf.bench.gateway_process import Gateway
from tests.support.families.factories import CheckpointFactory
from tests.support.same_audio import is_same_audio
from tests.support.servers.code2wav_calls import settle
from tests.support.servers.raw_calls import infer
from tests.support.servers.running import running
from tests.support.servers.server_metrics import metric
from tests.support.waiting import until
from voice_clone.marking.detection import PerthDetector
from voice_clone.marking.marker import PerthMarker
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

TEXT = "Every evening the boats came home."
FRAMES = 60


@pytest.fixture(scope="module")
def marking_server(
    checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("marking-server")
    with running(checkpoint_folder("tiny", 0), folder, VOICE_CLONE_MARK="required") as server:
        yield server


@pytest.fixture(scope="module")
def asked_server(
    checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """A server that marks what it is asked to."""
    folder = tmp_path_factory.mktemp("asked-server")
    with running(checkpoint_folder("tiny", 0), folder, VOICE_CLONE_MARK="requested") as server:
        yield server


def speak(server: TritonServer, clip: bytes, seed: int = 0, frames: int = FRAMES, mark: Any = None) -> list[Chunk]:
    with Client(server.url, mark=mark) as client:
        return list(client.speak(TEXT, reference_audio=clip, x_vector_only=True, seed=seed, max_frames=frames))


def samples(chunks: list[Chunk]) -> NDArray[np.float32]:
    return np.concatenate([chunk.samples for chunk in chunks])


def info(chunks: list[Chunk]) -> dict[str, Any]:
    return dict(chunks[-1].info or {})


def test_a_marked_stream_is_the_other_ones_speech_marked(
    marking_server: TritonServer, server: TritonServer, reference_clip: bytes
) -> None:
    plain, marked = speak(server, reference_clip), speak(marking_server, reference_clip)
    rate = plain[0].sample_rate
    marker = PerthMarker(rate)
    assert is_same_audio(samples(marked), marker.mark([marker.open()], [samples(plain)])[0])
    assert len(marked[0].samples) == len(plain[0].samples), "the first chunk comes with the first frames"
    assert len(marked) > 3
    assert info(marked)["mark"] == "marked" and "mark" not in info(plain)
    detector = PerthDetector()
    found, other = detector.detect(samples(marked), rate), detector.detect(samples(plain), rate)
    assert found.marked and found.confidence > 0.9, found
    assert not other.marked and other.confidence < 0.1, other


def test_marked_streams_are_counted(marking_server: TritonServer, reference_clip: bytes) -> None:
    settle(marking_server)
    before = metric(marking_server, "code2wav_marks_total", result="marked")
    speak(marking_server, reference_clip, seed=1, frames=3)
    until(lambda: metric(marking_server, "code2wav_marks_total", result="marked") == before + 1)
    assert metric(marking_server, "code2wav_marks_total", result="failed") == 0


@pytest.mark.parametrize("mark", [None, "off", "on", "required"])
def test_a_server_that_is_asked(
    mark: Mark | None, asked_server: TritonServer, server: TritonServer, reference_clip: bytes
) -> None:
    plain, asked = (speak(each, reference_clip, frames=20) for each in (server, asked_server))
    assert is_same_audio(samples(asked), samples(plain))
    asked = speak(asked_server, reference_clip, frames=20, mark=mark)
    expected, rate = samples(plain), plain[0].sample_rate
    if mark in ("on", "required"):
        marker = PerthMarker(rate)
        [expected] = marker.mark([marker.open()], [expected])
    assert is_same_audio(samples(asked), expected)
    said = "marked" if mark in ("on", "required") else None
    assert [(chunk.info or {}).get("mark") for chunk in (asked[0], asked[-1])] == [said, said]


def test_what_the_server_does_by_itself_is_done_in_any_case(
    marking_server: TritonServer, reference_clip: bytes
) -> None:
    for mark in ("off", "on"):
        assert info(speak(marking_server, reference_clip, frames=3, mark=mark))["mark"] == "marked"


def test_a_server_that_marks_nothing(server: TritonServer, reference_clip: bytes) -> None:
    assert "mark" not in info(speak(server, reference_clip, frames=3, mark="off"))
    for mark in ("on", "required"):
        with pytest.raises(Unsupported, match="serve it with mark requested"):
            speak(server, reference_clip, frames=20, mark=mark)
    with pytest.raises(InvalidArgument, match="off, on, required"):
        speak(server, reference_clip, frames=20, mark="yes")


def test_a_text_that_is_still_written(asked_server: TritonServer, reference_clip: bytes) -> None:
    with Client(asked_server.url, mark="required") as client:
        spoken = client.speak_stream(TEXT.split(" "), reference_audio=reference_clip, x_vector_only=True, max_frames=6)
        assert (next(spoken).info or {})["mark"] == "marked"


def test_the_command(
    asked_server: TritonServer,
    server: TritonServer,
    reference_clip: bytes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clip, out = tmp_path / "clip.wav", tmp_path / "out.flac"
    clip.write_bytes(reference_clip)
    speak = ("speak", TEXT, "--reference", str(clip), "--x-vector-only", "--max-frames", "6", "-o", str(out))
    for options, said in (((), None), (("--mark", "off"), None), (("--mark", "required"), "marked")):
        assert cli.main(["--url", asked_server.url, *speak, *options]) == 0
        assert find(out.read_bytes()) == (said and Statement("qwen3_tts", said))
    out.unlink()
    assert cli.main(["--url", server.url, *speak, "--mark", "on"]) == 1
    refused = "voice-clone: unsupported: this server marks no speech, and the request has --mark on; serve it with"
    assert capsys.readouterr().err.startswith(refused) and not out.exists()


def test_a_whole_speech_carries_it(asked_server: TritonServer, reference_clip: bytes) -> None:
    for mark, said in ((None, None), ("required", "marked")):
        inputs = {"text": TEXT, "reference_audio": reference_clip, "x_vector_only": True, "max_frames": 3}
        parameters = {} if mark is None else {"mark": mark}
        outputs = infer(asked_server.url, "speech_whole", inputs, **parameters)
        assert json.loads(outputs.as_numpy("info")[0]).get("mark") == said


def test_the_keys_of_a_gateway(asked_server: TritonServer, reference_clip: bytes, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-plain speak\nkey-required speak mark=required\n")
    url = "data:audio/wav;base64," + base64.b64encode(reference_clip).decode()
    body = {"input": TEXT, "reference_audio": url, "max_frames": 3}
    options = ("--api-keys-file", str(tmp_path / "keys"), "--audit-log", str(tmp_path / "audit"))
    with Gateway(asked_server.url, tmp_path / "log", *options) as gateway:
        for key, mark in (("plain", None), ("required", "marked")):
            headers = {"Authorization": f"Bearer key-{key}"}
            for more in ({}, {"stream": False}):
                answer = httpx2.post(f"{gateway.url}/v1/audio/speech", headers=headers, json=body | more, timeout=60.0)
                assert answer.status_code == 200 and find(answer.content) == (mark and Statement("qwen3_tts", mark))
                assert answer.headers.get("x-speech-provenance") == (mark and str(Statement("qwen3_tts", mark)))
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    found = [(line.get("mark_rule"), line.get("mark")) for line in lines]
    assert found == [(None, None), (None, None), ("required", "marked"), ("required", "marked")]
