"""A call of the talker: what it may hold, and how its stream is answered."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.clock import Clock
from tests.support.families.talker_inputs import Answer, Inputs, read, stage_of
from tests.support.families.talkers import make_prompt, read_config
from voice_clone.batching.stream import FrameChunk, Timing
from voice_clone.errors import Cancelled, InvalidArgument, VoiceCloneError
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.triton.stages.streams import LastChunks
from voice_clone.triton.stages.talker_call import read_call
from voice_clone.triton.stages.talker_sink import HEARTBEAT_SECONDS, TalkerSink

TIMING = Timing(queue=1.0, prefill=2.0, generate=3.0, first_frame=4.0, first_chunk=4.5, gap=5.0)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSConfig:
    return read_config("projected", tmp_path_factory.mktemp("checkpoint") / "folder")


def chunk(index: int, frames: int, finish: str | None = None) -> FrameChunk:
    return FrameChunk(index, np.full((frames, 16), index, np.int32), frames, finish, 9, TIMING)


def test_knobs_and_seed(config: Qwen3TTSConfig) -> None:
    stream = read(
        config, temperature=0.5, seed=7, max_frames=9, options='{"subtalker_top_k": 3, "subtalker_temperature": 0.25}'
    )
    plan, sampling = stream.plan, stream.plan.request.sampling
    assert isinstance(sampling, SamplingParameters)
    assert (sampling.temperature, sampling.seed, plan.request.max_frames) == (0.5, 7, 9)
    assert (sampling.subtalker_top_k, sampling.subtalker_temperature) == (3, 0.25)
    assert stream.deadline is None and stream.info == {"seed": 7, "stream_id": "s"} and stream.voice is None
    seeds = {read(config).plan.request.sampling.seed for _ in range(5)}
    assert len(seeds) == 5


def test_the_deadline_counts_from_the_beginning(config: Qwen3TTSConfig) -> None:
    huge = '{"prompt_ms": 1' + 400 * "0" + "}"  # no float holds it
    spent = ('{"prompt_ms": 2000}', 3.0), ("{}", 5.0), (huge, 5.0)
    for given, seconds in (({}, 5.0), *(({"prompt_info": info}, seconds) for info, seconds in spent)):
        before = time.monotonic()
        deadline = read(config, deadline_ms=5000, **given).deadline
        assert deadline is not None and before + seconds <= deadline <= time.monotonic() + seconds


@pytest.mark.parametrize(
    "given",
    [
        *({"deadline_ms": value} for value in (0, -1, True, "5", float("nan"), float("inf"))),
        *({"prompt_info": value} for value in ("{", "[]", "3")),
        *({"stream_id": value} for value in ("", "x" * 129, 5, None)),
        *({"options": value} for value in ('{"top_k": 3}', "[]", '{"subtalker_top_p": 2}', '{"subtalker_top_k": "a"}')),
        {"temperature": -1.0},
        {"max_frames": 0},
        {"language_id": 5},
        {"speaker_id": 5},
    ],
)
def test_nonsense(config: Qwen3TTSConfig, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        read(config, **given).plan.request.prompt.check(config)


def test_a_missing_tensor_is_named(config: Qwen3TTSConfig) -> None:
    with pytest.raises(InvalidArgument, match="prompt lacks reference_codes"):
        read(config, without="reference_codes")
    with pytest.raises(InvalidArgument, match="prompt must be safetensors bytes"):
        read(config, prompt=b"no safetensors")
    with pytest.raises(InvalidArgument, match="prompt is missing; qwen3_tts_prompt makes it"):
        read(config, without="prompt")


def test_what_an_owner_says_to_a_shared_voice_is_its_own(config: Qwen3TTSConfig) -> None:
    """Such as how to speak, which stands in the prefix; the reference alone serves all."""
    scopes = set()
    for owner in ("ada", "bob"):
        inputs = Inputs(
            make_prompt(config, 1),
            prompt_info='{"origin": ["7", 1.0, true, "voice 7"]}',
            options='{"instruct": "Whisper."}',
            owner=owner,
        )
        stream = read_call(inputs, stage_of(config), "qwen3_tts", 512)
        assert stream.origin.scope == "voice 7"
        scopes.add(stream.plan.request.origin.scope)
    assert len(scopes) == 2 and "voice 7" not in scopes


def test_chunks(config: Qwen3TTSConfig) -> None:
    stream, answer = read(config, seed=3, prompt_info='{"mode": "icl"}'), Answer()
    sink = TalkerSink(stream, answer, LastChunks())
    for each in (chunk(0, 1), chunk(1, 2), chunk(2, 3, "stop")):
        assert not answer.final
        sink.chunk(each)
    assert answer.final and [sent["final"] for sent in answer.sent] == [False, False, True]
    contexts = [len(sent["context_codes"]) for sent in answer.sent]
    assert contexts == [len(stream.plan.request.prompt.reference_codes), 0, 0]
    first, middle, last = (sent["info"] for sent in answer.sent)
    assert middle == "" and "finish_reason" not in json.loads(first)
    assert json.loads(last) == {
        "mode": "icl",
        "stream_id": "s",
        "seed": 3,
        "prompt_positions": 9,
        "frames": 3,
        "finish_reason": "stop",
        "queue_ms": 1.0,
        "prefill_ms": 2.0,
        "talker_ms": 3.0,
        "first_frame_ms": 4.0,
        "first_chunk_ms": 4.5,
        "chunk_gap_ms": 5.0,
    }


@pytest.mark.parametrize("error", [Cancelled("gone"), RuntimeError("secret path")])
def test_a_failure_before_the_first_chunk_is_an_error_and_later_a_last_chunk(
    config: Qwen3TTSConfig, error: Exception
) -> None:
    early, late, broken = Answer(), Answer(), Answer(broken=True)
    TalkerSink(read(config), early, LastChunks()).fail(error)
    assert early.error is error and not early.sent
    for answer in (late, broken):
        sink = TalkerSink(read(config), answer, LastChunks())
        sink.chunk(chunk(0, 4))
        sink.fail(error)
        assert answer.final
    assert isinstance(broken.error, VoiceCloneError) and late.error is None
    last = late.sent[-1]
    info = json.loads(last["info"])
    assert last["chunk_index"] == 1 and last["codes"].shape == (0, 16) and info["frames"] == 4
    slug = "cancelled" if isinstance(error, Cancelled) else "internal"
    assert info["finish_reason"] == slug and info["error"].startswith(f"{slug}: ")
    assert "secret" not in info["error"]


def test_heartbeats(config: Qwen3TTSConfig) -> None:
    """Chunks without frames that are not final, between the chunks, with the index of the next one."""
    stream, answer, clock = read(config), Answer(), Clock(0.0)
    sink = TalkerSink(stream, answer, LastChunks(), clock)

    def cancelled() -> bool:
        clock.now += HEARTBEAT_SECONDS
        return sink.cancelled()

    clock.now += 0.9 * HEARTBEAT_SECONDS
    assert not sink.cancelled() and not answer.sent, "too early to ask"
    assert not cancelled() and len(answer.sent) == 1
    sink.chunk(chunk(0, 1))
    assert not cancelled()
    sink.chunk(chunk(1, 2))
    assert not cancelled()
    sink.chunk(chunk(2, 3, "stop"))
    assert [sent["chunk_index"] for sent in answer.sent] == [0, 0, 1, 1, 2, 2]
    assert [len(sent["codes"]) for sent in answer.sent] == [0, 1, 0, 2, 0, 3]
    assert [sent["final"] for sent in answer.sent] == [False] * 5 + [True]
    for heartbeat in answer.sent[::2]:
        assert heartbeat["codes"].shape == (0, 16)
    reported = [json.loads(sent["info"] or "{}").get("origin") for sent in answer.sent]
    assert reported == [list(stream.origin)] * 2 + [None] * 4  # beside the reference, and nowhere else
    contexts = [sent["context_codes"] for sent in answer.sent]
    for context in contexts[:2]:  # with the heartbeat before the first chunk, so that code2wav is ready for it
        np.testing.assert_array_equal(context, stream.plan.context)
    assert len(contexts[0]) > 0 and all(context.shape == (0, 16) for context in contexts[2:])


def test_a_caller_that_has_left_gets_no_heartbeat(config: Qwen3TTSConfig) -> None:
    answer = Answer()
    answer.left = True
    assert TalkerSink(read(config), answer, LastChunks()).cancelled() and not answer.sent


def test_a_heartbeat_that_cannot_be_sent_ends_the_stream(
    config: Qwen3TTSConfig,
) -> None:
    clock = Clock(0.0)
    sink = TalkerSink(read(config), Answer(broken=True), LastChunks(), clock)
    sink.chunk(chunk(0, 1))
    clock.now += HEARTBEAT_SECONDS
    assert sink.cancelled()


def test_a_failure_after_a_heartbeat_is_a_last_chunk(config: Qwen3TTSConfig) -> None:
    """code2wav may be at work on the heartbeat."""
    answer, clock = Answer(), Clock(0.0)
    sink = TalkerSink(read(config), answer, LastChunks(), clock)
    clock.now += HEARTBEAT_SECONDS
    sink.cancelled()
    sink.fail(Cancelled("gone"))
    last = answer.sent[-1]
    assert answer.final and answer.error is None and last["final"] and last["chunk_index"] == 0
    assert json.loads(last["info"])["error"] == "cancelled: gone" and json.loads(last["info"])["frames"] == 0


def test_a_stream_is_announced_by_its_first_heartbeat(config: Qwen3TTSConfig) -> None:
    """At once, with the reference, and only before anything was sent."""
    stream, answer = read(config), Answer()
    sink = TalkerSink(stream, answer, LastChunks(), Clock(0.0))
    sink.announce()
    sink.announce()
    sink.chunk(chunk(0, 1))
    sink.announce()
    assert [(sent["chunk_index"], len(sent["codes"])) for sent in answer.sent] == [(0, 0), (0, 1)]
    np.testing.assert_array_equal(answer.sent[0]["context_codes"], stream.plan.context)
    assert json.loads(answer.sent[0]["info"]) == {"soon": True, "origin": list(stream.origin)}
