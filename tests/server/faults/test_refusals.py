"""Every step of the ensemble refuses what it must, and no refusal leaves its request behind.

Triton 2.51 never releases an ensemble's request if a step answers with an error while another is at work, and then the
server cannot stop. What ends the request of each refusal:

    step      refuses                                            what ends the ensemble's request
    prompt    any input, an unknown voice, a bad clip, a         its error: no other step has begun
              reference that is too long
    talker    knobs, deadline, a long prompt, a full queue       its error: nothing was sent to code2wav yet
    talker    the deadline, a cancel, a failed step, later       the error in the stream's last chunk
    code2wav  anything: no room, a wrong chunk, a failed decode  no answer to that chunk; the talker must end,
                                                                 and its last chunk gets the error
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from voice_clone_client import Client, InvalidArgument, Overloaded, VoiceCloneError

from tests.support.servers.code2wav_calls import CODEBOOKS, NO_CODES, asking
from tests.support.servers.endless import SMALL, SPEECH_ALONE, endless
from tests.support.servers.talker_calls import Call
from tests.support.waiting import WAIT
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

TEXT = "Every evening the boats came home. " * 4


@pytest.fixture(scope="module")
def tight(endless_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server with little room, also for references."""
    settings = {"VOICE_CLONE_MAX_STREAMS": "2", "VOICE_CLONE_MAX_QUEUE": "2", "VOICE_CLONE_MAX_LENGTH": "400"}
    settings["VOICE_CLONE_MAX_CHUNK_FRAMES"] = str(SMALL)
    with endless(endless_checkpoint, tmp_path_factory.mktemp("tight"), **settings) as server:
        yield server


def refused(client: Client, **given: Any) -> VoiceCloneError:
    with pytest.raises(VoiceCloneError) as failure:
        list(client.speak(**{"text": TEXT, "seed": 4, "max_frames": 40, **given}))
    return failure.value


def test_a_reference_that_code2wav_alone_refuses(
    endless_server: TritonServer, reference_clip: bytes, reference_text: str
) -> None:
    with Client(endless_server.url) as client:
        client.upload("Harbour", reference_clip, reference_text=reference_text, wait=True)
        with ThreadPoolExecutor(4) as pool:
            errors = list(pool.map(lambda _: refused(client, voice="Harbour"), range(8)))
        for error in errors:
            assert isinstance(error, InvalidArgument) and "context_codes has 65 frames; at most 60" in str(error)
        assert list(client.speak(TEXT, voice="Harbour", x_vector_only=True, max_frames=3))[-1].final


def test_a_reference_that_is_too_long_is_refused_where_it_comes_in(
    tight: TritonServer, server: TritonServer, client: Client, voice: str, reference_clip: bytes, reference_text: str
) -> None:
    bundle = client.export(voice)  # of a server that takes it
    first = Call(server, {"text": TEXT, "voice": voice}, model="qwen3_tts_prompt")
    prompt = first.next()
    first.close()
    with Client(tight.url) as client:
        with pytest.raises(InvalidArgument, match="such as qwen3_tts makes"):
            client.import_(bundle)
        clip = {"reference_audio": reference_clip, "reference_text": reference_text}
        assert "the clip has 65 frames, and this family takes at most 60 here" in str(refused(client, **clip))
        assert client.list() == []
        inputs = {name: prompt.as_numpy(name)[0] for name in ("prompt", "prompt_info")}
        call = Call(tight, inputs)
        assert "has 65 frames, and this server takes at most 60" in call.next()
        call.close()


def test_refusals_of_every_step(tight: TritonServer) -> None:
    embedding = {"speaker_embedding": np.ones(64, np.float32)}
    cases: list[dict[str, Any]] = [
        {"text": "  ", **embedding},
        {"voice": "Nobody"},
        {"speaker_embedding": np.full(64, np.nan, np.float32)},
        {"reference_audio": b"no audio", "reference_text": "hello"},
        {"language": "Klingon", **embedding},
        {"options": {"nope": 1}, **embedding},
        {"text": "word " * 1500, **embedding},
        {"temperature": 0.0, **embedding},
        {"top_p": float("nan"), **embedding},
        {"max_frames": 0, **embedding},
        {"max_frames": 5000, **embedding},
        {"text": "word " * 500, "non_streaming_mode": True, "max_frames": 390, **embedding},
    ]
    with Client(tight.url, model="qwen3_tts") as client:
        for given in cases:
            assert isinstance(refused(client, **given), VoiceCloneError), given
        inputs = {"text": TEXT, **embedding, "max_frames": np.array([300], np.int32)}
        parameters: list[dict[str, Any]] = [{"deadline_ms": value} for value in (0, -1, "x", 1, 5, 20, 60, 150)]
        for more in parameters:
            call = Call(tight, inputs, model="qwen3_tts", **more)
            answer = call.next()
            while not isinstance(answer, str) and not answer.as_numpy("final")[0]:
                answer = call.next()
            call.close()

        def speak(seed: int) -> str:
            try:
                return str(len(list(client.speak(TEXT, seed=seed, max_frames=30, **embedding))))
            except Overloaded as error:
                return str(error)

        with ThreadPoolExecutor(12) as pool:
            said = list(pool.map(speak, range(24)))
        assert any("waiting already" in each for each in said), said


@pytest.mark.parametrize("limit", [pytest.param("MAX_STATE_BYTES", marks=pytest.mark.long), "MAX_WAITING_CHUNKS"])
def test_a_code2wav_without_room(endless_checkpoint: Path, tmp_path: Path, limit: str) -> None:
    limits = {f"VOICE_CLONE_{limit}": "1"}
    with (
        endless(endless_checkpoint, tmp_path, options=SPEECH_ALONE, **limits) as server,
        Client(server.url, model="qwen3_tts") as client,
    ):

        def speak(seed: int) -> str:
            try:
                speech = client.speak(TEXT, speaker_embedding=np.ones(64, np.float32), seed=seed, max_frames=30)
                return str(len(list(speech)))
            except Overloaded as error:
                return str(error)

        with ThreadPoolExecutor(8) as pool:
            said = list(pool.map(speak, range(24)))
    assert any("already" in each for each in said), said


def test_no_other_can_put_chunks_into_a_speech(endless_server: TritonServer) -> None:
    """A caller who knows its stream's id sends chunks of it to code2wav: they are of another stream."""
    direct = asking(endless_server)
    codes = np.ones((2, CODEBOOKS), np.int32)
    with Client(endless_server.url, model="qwen3_tts") as client:
        embedding = np.ones(64, np.float32)
        expected = [chunk.samples for chunk in client.speak(TEXT, speaker_embedding=embedding, seed=1, max_frames=60)]
        heard = []
        for chunk in client.speak(TEXT, speaker_embedding=embedding, seed=1, max_frames=60):
            heard.append(chunk.samples)
            if chunk.info and not chunk.final:
                stream_id = chunk.info["stream_id"]
                assert "talker" not in stream_id
                for index, final in [(0, False), (1, False), (1, True), (2, True), (-1, False), (0, True)]:
                    direct(stream_id, index, codes, final=final)
                direct(stream_id, 0, NO_CODES, final=True, info=json.dumps({"error": "cancelled: no"}))
        assert sum(map(len, heard)) == sum(map(len, expected))


def test_chunks_that_copy_a_talkers_id(endless_server: TritonServer) -> None:
    """They get their error with the final chunk, like a talker's, and harm no other stream."""
    direct = asking(endless_server)
    mark = f"mine.qwen3_tts_talker-{'0' * 32}"
    bad = np.full((2, CODEBOOKS), 10**6, np.int32)
    assert direct(mark, 0, bad) is None
    assert direct(mark, 1, bad) is None
    assert "codes must lie in 0.." in direct(mark, 2, NO_CODES, final=True)
    assert "not open" in direct(mark, 3, bad % 9, final=True)
    assert direct(mark, 0, bad % 9, info="no json") is None
    assert "`info` must be a JSON object" in direct(mark, 1, NO_CODES, final=True)


@pytest.mark.parametrize("text", [r"\ud800", r"invalid_argument: \udfff", r"cancelled: a\u0000b", "é" * 3000])
def test_any_error_of_a_talker_is_answered(endless_server: TritonServer, text: str) -> None:
    direct = asking(endless_server)
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: answers.append(direct("x", 0, NO_CODES, final=True, info='{"error": "' + text + '"}'))
    )
    thread.start()
    thread.join(WAIT)
    assert answers and isinstance(answers[0], str) and ": " in answers[0], "no answer"
    call = Call(endless_server, {"prompt": b"x", "prompt_info": '{"stream_id": "' + text + '"}'})
    assert "invalid_argument: " in call.next()
    call.close()
