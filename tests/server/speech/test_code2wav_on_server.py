"""code2wav on the real server: called directly with streams of our own, and inside the ensemble."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from voice_clone_client import Client

from tests.support.families.factories import CheckpointFactory
from tests.support.same_audio import assert_same_audio
from tests.support.servers.code2wav_calls import CODEBOOKS, NO_CODES, Ask, asking, chunk_inputs, settle
from tests.support.servers.server_metrics import metric
from tests.support.servers.talker_calls import Call
from tests.support.waiting import until
from voice_clone.families.qwen3_tts import codec as decoder_stage
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.settings import Settings
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

FRAME = 1920


def random_codes(frames: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, (frames, CODEBOOKS), dtype=np.int32)


@pytest.fixture
def direct(server: TritonServer) -> Ask:
    return asking(server)


@pytest.fixture(scope="module")
def decoder(checkpoint_folder: CheckpointFactory) -> CodecDecoder:
    settings = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint_folder("tiny", 0))})
    return decoder_stage.load_torch_decoder(settings)[0]


def whole(decoder: CodecDecoder, codes: np.ndarray, context: np.ndarray = NO_CODES) -> np.ndarray:
    joined = torch.from_numpy(np.concatenate((context, codes)).T[None].astype(np.int64))
    return np.asarray(decoder(joined)[0, len(context) * FRAME :].numpy())


def test_eight_streams_at_once_are_each_exact(direct: Ask, decoder: CodecDecoder) -> None:
    sizes = [1, 2, 4, 8, 12, 5]
    codes = [random_codes(sum(sizes), i) for i in range(8)]
    contexts = [random_codes(20, 9) if i % 2 else NO_CODES for i in range(8)]

    def play(i: int) -> np.ndarray:
        parts, start = [], 0
        for index, size in enumerate(sizes):
            final = index == len(sizes) - 1
            context = contexts[i] if index == 0 else NO_CODES
            answer = direct(f"eight-{i}", index, codes[i][start : start + size], context, final)
            assert answer.as_numpy("chunk_index").tolist() == [index]
            assert answer.as_numpy("final").tolist() == [final]
            parts.append(answer.as_numpy("audio"))
            start += size
        return np.concatenate(parts)

    with ThreadPoolExecutor(8) as pool:
        for i, got in enumerate(pool.map(play, range(8))):
            assert_same_audio(got, whole(decoder, codes[i], contexts[i]))


def test_chunks_sent_ahead_come_back_in_order(server: TritonServer, decoder: CodecDecoder) -> None:
    codes = random_codes(40, 3)
    call = Call(server, chunk_inputs("ahead", 0, codes[:4]), model="qwen3_tts_code2wav")
    for index in range(1, 10):
        call.send(chunk_inputs("ahead", index, codes[4 * index : 4 * index + 4], final=index == 9))
    parts = []
    for index in range(10):
        result = call.next()
        assert result.as_numpy("chunk_index").tolist() == [index]
        parts.append(result.as_numpy("audio"))
    call.close()
    assert_same_audio(np.concatenate(parts), whole(decoder, codes))


def test_a_heartbeat_changes_nothing(direct: Ask, decoder: CodecDecoder) -> None:
    codes, parts = random_codes(9, 6), []
    for index in range(3):
        assert direct("alive", index, NO_CODES) is None
        parts.append(direct("alive", index, codes[3 * index : 3 * index + 3], final=index == 2).as_numpy("audio"))
    assert direct("alive", 3, NO_CODES) is None
    assert_same_audio(np.concatenate(parts), whole(decoder, codes))


def test_a_foreign_chunk_does_not_harm_a_stream(direct: Ask, decoder: CodecDecoder) -> None:
    """A caller that knows a stream's id and sends a wrong chunk of it gets an error, and nothing else happens."""
    codes = random_codes(8, 4)
    parts = [direct("victim", 0, codes[:3], random_codes(7, 5))]
    nonsense: list[dict[str, Any]] = [
        {"index": 0, "codes": random_codes(2, 0)},
        {"index": 2, "codes": random_codes(2, 0), "final": True},
        {"index": 1, "codes": np.full((5, CODEBOOKS), -1, np.int32), "final": True},
        {"index": 1, "codes": np.full((5, CODEBOOKS), 10**6, np.int32)},
        {"index": 1, "codes": np.zeros((5, 3), np.int32)},
        {"index": 1, "codes": np.zeros((5, 0), np.int32)},
        {"index": 1, "codes": np.zeros((100_000, CODEBOOKS), np.int32)},
        {"index": 1, "codes": random_codes(2, 0), "context": random_codes(2, 0)},
        {"index": 1, "codes": random_codes(2, 0), "info": "no json"},
        {"index": 1, "codes": random_codes(2, 0), "info": "[1]"},
        {"index": -(2**31), "codes": random_codes(2, 0)},
    ]
    for given in nonsense:
        error = direct("victim", **given)
        assert isinstance(error, str) and error.startswith("invalid_argument: "), given
        assert "/" not in error
    parts.append(direct("victim", 1, codes[3:], final=True))
    got = np.concatenate([part.as_numpy("audio") for part in parts])
    assert_same_audio(got, whole(decoder, codes, random_codes(7, 5)))


def test_the_state_after_a_reference_is_computed_once(direct: Ask, server: TritonServer) -> None:
    context, codes, seen, audio = random_codes(30, 1234), random_codes(2, 1), [], []
    settle(server)
    hits, misses = (metric(server, "code2wav_primed_total", result=result) for result in ("hit", "miss"))
    for number in range(3):
        answer = direct(f"known-{number}", 0, codes, context, True, '{"kept": [1]}')
        info = json.loads(answer.as_numpy("info")[0])
        assert info["kept"] == [1] and 0 < info["code2wav_ms"] <= info["code2wav_first_ms"]
        seen.append(info["primed"])
        audio.append(answer.as_numpy("audio"))
    assert seen == ["miss", "hit", "hit"]
    np.testing.assert_array_equal(audio[1], audio[0])
    until(lambda: metric(server, "code2wav_primed_total", result="hit") == hits + 2)
    until(lambda: metric(server, "code2wav_primed_total", result="miss") == misses + 1)
    assert metric(server, "code2wav_state_bytes", of="primed") > 0


def test_the_last_chunk_of_a_failed_talker_carries_its_error(direct: Ask) -> None:
    direct("failing", 0, random_codes(2, 0))
    info = json.dumps({"error": "deadline_exceeded: too late"})
    assert direct("failing", 1, NO_CODES, final=True, info=info) == "deadline_exceeded: too late"


def test_eight_voices_speak_at_once(client: Client, server: TritonServer, voice: str) -> None:
    def speak(seed: int) -> tuple[int, dict[str, Any], int]:
        chunks = list(
            client.speak(f"Sentence {seed}.", voice=voice, max_frames=20, seed=seed, x_vector_only=seed % 2 == 1)
        )
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        return sum(len(chunk.samples) for chunk in chunks), dict(chunks[-1].info or {}), len(chunks)

    list(client.speak("Good morning.", voice=voice, max_frames=1, seed=0))
    settle(server)
    finished = metric(server, "code2wav_streams_ended_total", reason="finished")
    batches = metric(server, "code2wav_batch_size_sum")
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(speak, range(8)))
    for seed, (samples, info, _) in enumerate(made):
        assert samples == info["frames"] * FRAME
        assert info["primed"] == ("none" if seed % 2 else "hit")
    until(lambda: metric(server, "code2wav_streams_ended_total", reason="finished") == finished + 8)
    until(lambda: metric(server, "code2wav_batch_size_sum") == batches + sum(chunks for _, _, chunks in made))
    until(lambda: metric(server, "code2wav_streams") == 0 and metric(server, "code2wav_frame_ms_sum") > 0)


def test_a_stream_without_chunks_is_dropped(checkpoint_folder: CheckpointFactory, tmp_path: Any) -> None:
    """Bounds hold too: as many states as fit the memory set for them, and references are forgotten in time."""
    environment = {
        "VOICE_CLONE_STREAM_IDLE_SECONDS": "5",  # in which a busy machine gets to the next call
        "VOICE_CLONE_PRIMED_SECONDS": "1.5",
        "VOICE_CLONE_MAX_STATE_BYTES": "1",
    }
    options = ["--model-control-mode=explicit", "--load-model=qwen3_tts_code2wav"]
    checkpoint, voices, log = checkpoint_folder("tiny", 0), tmp_path / "voices", tmp_path / "log"
    with TritonServer(checkpoint, voices, log=log, options=options, environment=environment) as server:
        direct = asking(server)
        direct("only", 0, random_codes(1, 0), random_codes(5, 0))
        assert "overloaded: 1 streams are open" in direct("second", 0, random_codes(1, 0), final=True)
        until(lambda: metric(server, "code2wav_streams_ended_total", reason="idle") == 1)
        until(lambda: metric(server, "code2wav_state_bytes", of="primed") == 0)
        assert metric(server, "code2wav_streams") == 0
        assert "deadline_exceeded: no chunk" in direct("only", 1, random_codes(1, 0), final=True)
        assert direct("second", 0, random_codes(1, 0), final=True).as_numpy("final").tolist() == [True]
        server.kill()
