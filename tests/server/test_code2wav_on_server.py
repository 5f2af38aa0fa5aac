"""code2wav on the real server: called directly with streams of our own, and inside the ensemble."""

from __future__ import annotations

import json
import queue
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from voice_clone_client import Client

from tests.conftest import CheckpointFactory
from tools.triton_server import TritonServer
from voice_clone.qwen3_tts import stages
from voice_clone.qwen3_tts.codec_decoder import CodecDecoder
from voice_clone.settings import Settings

FRAME, BOOKS = 1920, 16
NO_CODES = np.zeros((0, BOOKS), np.int32)
PREFIX = "voice_clone_code2wav_"


def random_codes(frames: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, (frames, BOOKS), dtype=np.int32)


def metric(server: TritonServer, name: str) -> float:
    """The value of a series; 0 if there is none yet."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=5.0) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{PREFIX}{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def inputs(
    stream_id: str, index: int, codes: np.ndarray, context: np.ndarray = NO_CODES, final: bool = False, info: str = ""
) -> list[triton.InferInput]:
    tensors: dict[str, tuple[str, np.ndarray]] = {
        "stream_id": ("BYTES", np.array([stream_id.encode()], np.object_)),
        "codes": ("INT32", codes),
        "context_codes": ("INT32", context),
        "chunk_index": ("INT32", np.array([index], np.int32)),
        "final": ("BOOL", np.array([final])),
        "info": ("BYTES", np.array([info.encode()], np.object_)),
    }
    made = []
    for name, (kind, array) in tensors.items():
        made.append(triton.InferInput(name, list(array.shape), kind))
        made[-1].set_data_from_numpy(array)
    return made


@pytest.fixture
def direct(server: TritonServer) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(server.url)
    yield client
    client.close()


@pytest.fixture(scope="module")
def decoder(checkpoint_folder: CheckpointFactory) -> CodecDecoder:
    settings = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint_folder("tiny", 0))})
    return stages.load_codec_decoder(settings)[0]


def whole(decoder: CodecDecoder, codes: np.ndarray, context: np.ndarray = NO_CODES) -> np.ndarray:
    joined = torch.from_numpy(np.concatenate((context, codes)).T[None].astype(np.int64))
    return np.asarray(decoder(joined)[0, len(context) * FRAME :].numpy())


def assert_same_audio(actual: np.ndarray, expected: np.ndarray) -> None:
    rms = float(np.sqrt(np.mean(expected**2)))
    assert rms > 0.01, "near silence proves nothing"
    assert actual.shape == expected.shape
    assert float(np.sqrt(np.mean((actual - expected) ** 2))) <= 1e-5 * rms


def test_eight_streams_at_once_are_each_exact(direct: triton.InferenceServerClient, decoder: CodecDecoder) -> None:
    sizes = [1, 2, 4, 8, 12, 5]
    codes = [random_codes(sum(sizes), i) for i in range(8)]
    contexts = [random_codes(20, 9) if i % 2 else NO_CODES for i in range(8)]

    def play(i: int) -> np.ndarray:
        parts, start = [], 0
        for index, size in enumerate(sizes):
            final = index == len(sizes) - 1
            context = contexts[i] if index == 0 else NO_CODES
            answer = direct.infer(
                "qwen3_tts_code2wav", inputs(f"eight-{i}", index, codes[i][start : start + size], context, final)
            )
            assert answer.as_numpy("chunk_index").tolist() == [index]
            assert answer.as_numpy("final").tolist() == [final]
            parts.append(answer.as_numpy("audio"))
            start += size
        return np.concatenate(parts)

    with ThreadPoolExecutor(8) as pool:
        for i, got in enumerate(pool.map(play, range(8))):
            assert_same_audio(got, whole(decoder, codes[i], contexts[i]))


def test_chunks_sent_ahead_come_back_in_order(direct: triton.InferenceServerClient, decoder: CodecDecoder) -> None:
    codes = random_codes(40, 3)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    direct.start_stream(lambda result, error: answers.put((result, error)))
    for index in range(10):
        chunk = inputs("ahead", index, codes[4 * index : 4 * index + 4], final=index == 9)
        direct.async_stream_infer("qwen3_tts_code2wav", chunk)
    parts = []
    for index in range(10):
        result, error = answers.get(timeout=20)
        assert error is None, error
        assert result.as_numpy("chunk_index").tolist() == [index]
        parts.append(result.as_numpy("audio"))
    direct.stop_stream()
    assert_same_audio(np.concatenate(parts), whole(decoder, codes))


def test_strangers_do_not_harm_a_stream(direct: triton.InferenceServerClient, decoder: CodecDecoder) -> None:
    """Whoever knows a stream's id and sends nonsense in its name gets an error, and nothing else happens."""
    codes = random_codes(8, 4)
    parts = [direct.infer("qwen3_tts_code2wav", inputs("victim", 0, codes[:3], random_codes(7, 5)))]
    nonsense: list[dict[str, Any]] = [
        {"index": 0, "codes": random_codes(2, 0)},
        {"index": 2, "codes": random_codes(2, 0), "final": True},
        {"index": 1, "codes": np.full((5, BOOKS), -1, np.int32), "final": True},
        {"index": 1, "codes": np.full((5, BOOKS), 10**6, np.int32)},
        {"index": 1, "codes": np.zeros((5, 3), np.int32)},
        {"index": 1, "codes": np.zeros((5, 0), np.int32)},
        {"index": 1, "codes": np.zeros((100_000, BOOKS), np.int32)},
        {"index": 1, "codes": random_codes(2, 0), "context": random_codes(2, 0)},
        {"index": 1, "codes": random_codes(2, 0), "info": "no json"},
        {"index": 1, "codes": random_codes(2, 0), "info": "[1]"},
        {"index": -(2**31), "codes": random_codes(2, 0)},
    ]
    for given in nonsense:
        with pytest.raises(triton.InferenceServerException) as failure:
            direct.infer("qwen3_tts_code2wav", inputs("victim", **given))
        assert failure.value.message().startswith("invalid_argument: "), given
        assert "/" not in failure.value.message()
    parts.append(direct.infer("qwen3_tts_code2wav", inputs("victim", 1, codes[3:], final=True)))
    got = np.concatenate([part.as_numpy("audio") for part in parts])
    assert_same_audio(got, whole(decoder, codes, random_codes(7, 5)))


def test_the_state_after_a_reference_is_computed_once(
    direct: triton.InferenceServerClient, server: TritonServer
) -> None:
    context, codes, seen, audio = random_codes(30, 1234), random_codes(2, 1), [], []
    before = {result: metric(server, f'primed_total{{result="{result}"}}') for result in ("hit", "miss")}
    for number in range(3):
        answer = direct.infer("qwen3_tts_code2wav", inputs(f"known-{number}", 0, codes, context, True, '{"kept": [1]}'))
        info = json.loads(answer.as_numpy("info")[0])
        assert info["kept"] == [1] and 0 < info["code2wav_ms"] <= info["code2wav_first_ms"]
        seen.append(info["primed"])
        audio.append(answer.as_numpy("audio"))
    assert seen == ["miss", "hit", "hit"]
    np.testing.assert_array_equal(audio[1], audio[0])
    wait_for(lambda: metric(server, 'primed_total{result="hit"}') == before["hit"] + 2)
    assert metric(server, 'primed_total{result="miss"}') == before["miss"] + 1
    assert metric(server, 'state_bytes{of="primed"}') > 0


def test_cancelled_speeches_free_all_they_held(private_server: TritonServer) -> None:
    """Given up at different moments: no state stays, and no request, for the server stops at once."""
    private_server.start()
    embedding = np.random.default_rng(0).normal(size=64).astype(np.float32)
    with Client(private_server.url) as client:
        for chunks in (1, 2, 3, 1, 2, 3):
            speech = client.speak("A long story. " * 30, speaker_embedding=embedding, max_frames=2000, seed=chunks)
            for _ in range(chunks):
                next(speech)
            speech.close()
        cancelled = 'streams_ended_total{reason="cancelled"}'
        wait_for(lambda: metric(private_server, cancelled) == 6 and metric(private_server, "streams") == 0)
        assert metric(private_server, 'state_bytes{of="streams"}') == 0
        last = list(client.speak("Good morning.", speaker_embedding=embedding, max_frames=8, seed=0))[-1]
        assert last.final and metric(private_server, 'streams_ended_total{reason="failed"}') == 0
    private_server.stop()
    assert private_server._log is not None
    assert "'qwen3_tts' (version 1) has" not in private_server._log.read_text(), "a request was never released"


def test_a_talker_that_fails_tells_so_with_its_last_chunk(direct: triton.InferenceServerClient) -> None:
    direct.infer("qwen3_tts_code2wav", inputs("failing", 0, random_codes(2, 0)))
    told = json.dumps({"error": "deadline_exceeded: too late"})
    with pytest.raises(triton.InferenceServerException, match="deadline_exceeded: too late") as failure:
        direct.infer("qwen3_tts_code2wav", inputs("failing", 1, NO_CODES, final=True, info=told))
    assert failure.value.message() == "deadline_exceeded: too late"


def test_eight_voices_speak_at_once(client: Client, server: TritonServer, voice: str) -> None:
    def speak(seed: int) -> tuple[int, dict[str, Any]]:
        chunks = list(
            client.speak(f"Sentence {seed}.", voice=voice, max_frames=20, seed=seed, x_vector_only=seed % 2 == 1)
        )
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        return sum(len(chunk.samples) for chunk in chunks), dict(chunks[-1].info or {})

    list(client.speak("Good morning.", voice=voice, max_frames=1, seed=0))
    with ThreadPoolExecutor(8) as pool:
        for seed, (samples, info) in enumerate(pool.map(speak, range(8))):
            assert samples == info["frames"] * FRAME
            assert info["primed"] == ("none" if seed % 2 else "hit")
    wait_for(lambda: metric(server, "streams") == 0)
    assert metric(server, "batch_size_count") > 0 and metric(server, "frame_ms_sum") > 0


def test_a_stream_that_nobody_feeds_is_dropped(checkpoint_folder: CheckpointFactory, tmp_path: Any) -> None:
    """And bounds hold: as many states as memory was set apart for, references forgotten in time."""
    environment = {
        "VOICE_CLONE_STREAM_IDLE_SECONDS": "1.5",
        "VOICE_CLONE_PRIMED_SECONDS": "1.5",
        "VOICE_CLONE_MAX_STATE_BYTES": "1",
    }
    log = tmp_path / "log"
    with TritonServer(checkpoint_folder("tiny", 0), tmp_path / "voices", log=log, environment=environment) as server:
        client = triton.InferenceServerClient(server.url)
        client.infer("qwen3_tts_code2wav", inputs("only", 0, random_codes(1, 0), random_codes(5, 0)))
        with pytest.raises(triton.InferenceServerException, match="overloaded: 1 streams are open"):
            client.infer("qwen3_tts_code2wav", inputs("second", 0, random_codes(1, 0), final=True))
        wait_for(lambda: metric(server, 'streams_ended_total{reason="idle"}') == 1)
        wait_for(lambda: metric(server, 'state_bytes{of="primed"}') == 0)
        assert metric(server, "streams") == 0
        with pytest.raises(triton.InferenceServerException, match="deadline_exceeded: no chunk"):
            client.infer("qwen3_tts_code2wav", inputs("only", 1, random_codes(1, 0), final=True))
        client.infer("qwen3_tts_code2wav", inputs("second", 0, random_codes(1, 0), final=True))
        client.close()
