"""The talker on the real server, called directly: cancels, deadlines, overload, determinism, metrics."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.support.servers.server_metrics import metric
from tests.support.servers.talker_calls import Call, prompt, tensors
from tests.support.waiting import WAIT, until
from voice_clone.batching.outbox import POLL_SECONDS
from voice_clone_server.triton_server import TritonServer

SLOTS, QUEUE = 2, 3
MAX_LENGTH = 32768
ENDLESS = 30000  # frames; far more than any test waits for


@pytest.fixture(scope="module")
def talker(endless_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server with the talker alone: few slots, deterministic."""
    settings = {
        "VOICE_CLONE_MAX_STREAMS": str(SLOTS),
        "VOICE_CLONE_MAX_QUEUE": str(QUEUE),
        "VOICE_CLONE_DETERMINISTIC": "true",
        "VOICE_CLONE_MAX_LENGTH": str(MAX_LENGTH),
        "VOICE_CLONE_PREFILL_CHUNK": "16",
        "VOICE_CLONE_RUNAWAY_SECONDS": "100000",  # a stream of 30,000 frames may well repeat itself
        "OMP_NUM_THREADS": "1",
    }
    with TritonServer(
        endless_checkpoint,
        log=tmp_path_factory.mktemp("talker") / "log",
        options=["--model-control-mode=explicit", "--load-model=qwen3_tts_talker"],
        environment=settings,
    ) as server:
        yield server
        assert server.ready()
        server.kill()


def ended(talker: TritonServer, reason: str) -> float:
    """Each stream is counted some time after its caller has heard of its end; so a test waits for its own."""
    return metric(talker, "talker_streams_total", reason=reason)


@pytest.fixture(autouse=True)
def nothing_is_left(talker: TritonServer) -> Iterator[None]:
    """Every test frees all it took."""
    yield
    time.sleep(3 * POLL_SECONDS)  # a new stream is in the gauges after the next poll
    until(lambda: metric(talker, "talker_live_streams") == 0 and metric(talker, "talker_waiting_streams") == 0)


def test_alone_and_in_company(talker: TritonServer) -> None:
    cases = [{"seed": n, "frames": 5 + 3 * n, "icl": n % 2 == 0} for n in range(5)]
    alone = [Call(talker, prompt(f"alone {n}", **case)).codes() for n, case in enumerate(cases)]
    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(Call(talker, prompt(f"many {n}", **case)).codes) for n, case in enumerate(cases)]
        for expected, job in zip(alone, jobs, strict=True):
            assert len(expected) > 2
            np.testing.assert_array_equal(job.result(WAIT), expected)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_caller_that_leaves_frees_its_stream(talker: TritonServer, waiting: bool) -> None:
    before, frames = ended(talker, "cancelled"), metric(talker, "talker_frames_total")
    live = [Call(talker, prompt(f"live {n}", frames=ENDLESS)) for n in range(SLOTS if waiting else 1)]
    for call in live:
        call.next()
    calls = [Call(talker, prompt("waits", frames=ENDLESS)), *live] if waiting else live
    if waiting:
        until(lambda: metric(talker, "talker_waiting_streams") == 1)
    for left, call in enumerate(calls, 1):
        call.leave()
        until(lambda left=left: ended(talker, "cancelled") == before + left)
    assert metric(talker, "talker_frames_total") - frames < ENDLESS


def test_cancel_by_id(talker: TritonServer) -> None:
    before = ended(talker, "cancelled")
    call = Call(talker, prompt("to be cancelled", frames=ENDLESS))
    call.next()
    with triton.InferenceServerClient(talker.url) as client:
        for name in ("nobody", "to be cancelled"):
            done: queue.Queue[Any] = queue.Queue()
            client.start_stream(lambda result, error, done=done: done.put(error))
            client.async_stream_infer("qwen3_tts_talker", tensors(cancel=name), enable_empty_final_response=True)
            assert done.get(timeout=WAIT) is None
            client.stop_stream()
    assert "cancelled: " in call.error()
    until(lambda: ended(talker, "cancelled") == before + 1)


@pytest.mark.parametrize("milliseconds", [300, 300.5])
def test_deadline(talker: TritonServer, milliseconds: float) -> None:
    calls = [Call(talker, prompt(str(n), frames=ENDLESS), deadline_ms=milliseconds) for n in range(SLOTS + 1)]
    for call in calls:
        assert "deadline_exceeded: " in call.error()
    in_time = Call(talker, prompt("in time", frames=5), deadline_ms=60000).codes()
    np.testing.assert_array_equal(in_time, Call(talker, prompt("without", frames=5)).codes())


def test_overload(talker: TritonServer) -> None:
    refused, cancelled = ended(talker, "overloaded"), ended(talker, "cancelled")
    calls = [Call(talker, prompt(f"live {n}", frames=ENDLESS)) for n in range(SLOTS)]
    for call in calls:
        call.next()
    calls += [Call(talker, prompt(f"waits {n}", frames=3)) for n in range(QUEUE)]
    until(lambda: metric(talker, "talker_waiting_streams") == QUEUE)
    too_many = Call(talker, prompt("one too many")).error()
    assert "overloaded: 3 streams are waiting" in too_many
    until(lambda: ended(talker, "overloaded") == refused + 1)
    for call in calls[:SLOTS]:
        call.leave()
    for call in calls[SLOTS:]:
        assert len(call.codes()) == 3
    until(lambda: ended(talker, "cancelled") == cancelled + SLOTS)


def test_a_full_queue_is_taken_from_the_caller_who_fills_it(talker: TritonServer) -> None:
    refused, cancelled = ended(talker, "overloaded"), ended(talker, "cancelled")
    live = [Call(talker, prompt(f"live {n}", frames=ENDLESS), caller="many") for n in range(SLOTS)]
    for call in live:
        call.next()
    waiting = [Call(talker, prompt(f"waits {n}", frames=3), caller="many") for n in range(QUEUE)]
    until(lambda: metric(talker, "talker_waiting_streams") == QUEUE)
    few = Call(talker, prompt("few", frames=3), caller="few")
    until(lambda: ended(talker, "overloaded") == refused + 1)
    for call in live:
        call.leave()
    assert len(few.codes()) == 3
    ends = [call.end() for call in waiting]
    assert sorted(len(codes) for codes, _ in ends) == [0, *[3] * (QUEUE - 1)]
    assert ["overloaded: " in error for _, error in ends if error is not None] == [True]
    until(lambda: ended(talker, "cancelled") == cancelled + SLOTS)


@pytest.mark.parametrize("wrong", [{"caller": 7}, {"caller": "x" * 200}, {"urgency": "now"}])
def test_what_is_no_caller(talker: TritonServer, wrong: dict[str, Any]) -> None:
    assert "invalid_argument: " in Call(talker, prompt("wrong"), **wrong).error()


# What is changed in the prompt's arrays, in the request's inputs and in its parameters, and what the error mentions.
Bad = tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]
BAD: dict[str, Bad] = {
    "no deadline": ({}, {}, {"deadline_ms": 0}, "deadline_ms"),
    "negative deadline": ({}, {}, {"deadline_ms": -5}, "deadline_ms"),
    "deadline of text": ({}, {}, {"deadline_ms": "soon"}, "deadline_ms"),
    "deadline of truth": ({}, {}, {"deadline_ms": True}, "deadline_ms"),
    "prompt of no arrays": ({}, {"prompt": b"no safetensors"}, {}, "prompt must be safetensors"),
    "info of no JSON": ({}, {"prompt_info": "{"}, {}, "prompt_info"),
    "info of a list": ({}, {"prompt_info": "[1]"}, {}, "prompt_info"),
    "no stream id": ({}, {"prompt_info": '{"stream_id": ""}'}, {}, "stream_id"),
    "long stream id": ({}, {"prompt_info": json.dumps({"stream_id": "x" * 129})}, {}, "stream_id"),
    "ids out of range": ({"text_ids": np.array([10**9], np.int32)}, {}, {}, "text_ids"),
    "codes out of range": (
        {"reference_ids": np.array([1], np.int32), "reference_codes": np.full((3, 16), 5000, np.int32)},
        {},
        {},
        "reference_codes",
    ),
    "another embedding": ({"speaker_embedding": np.zeros(5, np.float32)}, {}, {}, "speaker_embedding"),
    "NaN": ({"speaker_embedding": np.full(64, np.nan, np.float32)}, {}, {}, "speaker_embedding"),
    "too long": (
        {"text_ids": np.zeros(3000, np.int32)},
        {"max_frames": np.array([10**6], np.int32)},
        {},
        "positions",
    ),
    "an unknown option": ({}, {"options": '{"subtalker": 1}'}, {}, "subtalker_top_k"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_calls(talker: TritonServer, case: str) -> None:
    arrays, inputs, parameters, text = BAD[case]
    beside = Call(talker, prompt("beside", frames=10))
    error = Call(talker, {**prompt("bad", **arrays), **inputs}, **parameters).error()
    assert "invalid_argument: " in error and text in error
    assert ".py" not in error and "Traceback" not in error
    assert len(beside.codes()) == 10


def test_an_id_names_one_live_stream(talker: TritonServer) -> None:
    before = ended(talker, "cancelled")
    first = Call(talker, prompt("same", frames=ENDLESS))
    first.next()
    assert "invalid_argument: a stream of this stream_id" in Call(talker, prompt("same")).error()
    first.leave()
    until(lambda: ended(talker, "cancelled") == before + 1)
