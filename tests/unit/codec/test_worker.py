"""The decoding thread: each stream in order, first chunks first, and no stream's end is another's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.codec_bench import Bench, Ticket, heard
from tests.support.families.small_codec import FORM, NO_CODES, chunks_of, random_codes, whole
from tests.support.same_audio import assert_same_audio
from tests.support.waiting import until
from voice_clone.codec.chunk import CodecChunk, Decoded, Reference
from voice_clone.codec.worker import FIRST_CHUNK_LEAD, MAX_REFERENCES
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.turns import Caller

FRAME_SECONDS = FORM.frame_seconds


def test_many_streams_at_once_keep_their_order_and_their_audio(
    decoder: CodecDecoder, bench: Callable[..., Bench]
) -> None:
    one = bench()
    context = random_codes(10, 77)
    codes = {f"s{i}": random_codes(27 + i, i) for i in range(8)}
    streams = {
        name: chunks_of(name, each, [1, 2, 4, 8, 12], context if i % 2 else NO_CODES)
        for i, (name, each) in enumerate(codes.items())
    }
    tickets: dict[str, list[Ticket]] = {name: [] for name in codes}

    def feed(name: str) -> None:
        for chunk in streams[name]:
            tickets[name] += one.submit(chunk)

    feeders = [threading.Thread(target=feed, args=(name,)) for name in streams]
    for feeder in feeders:
        feeder.start()
    for feeder in feeders:
        feeder.join()
    for i, name in enumerate(codes):
        assert_same_audio(heard(tickets[name]), whole(decoder, codes[name], context if i % 2 else NO_CODES))
        assert [index for stream, index in one.order if stream == name] == list(range(5))
    one.worker.close()
    assert one.code2wav.streams == 0 and one.lost_streams == []
    assert sorted(one.answered_streams) == sorted(codes)
    assert one.ended().count("finished") == 8
    assert sum(report.primed_hits for report in one.reports) == 3
    assert sum(report.primed_misses for report in one.reports) == 1
    assert sum(report.batch for report in one.reports) == 40
    assert one.reports[-1].open_streams == 0 and one.reports[-1].stream_bytes == 0


def test_chunks_of_as_many_frames_share_a_batch(bench: Callable[..., Bench]) -> None:
    one = bench(max_batch=3)
    one.hold()
    tickets = one.submit(*(CodecChunk(f"s{i}", 0, random_codes(1 + i % 2, i), NO_CODES, True) for i in range(8)))
    one.release()
    heard(tickets)
    assert one.batches[1:] == [
        [("s0", 0), ("s2", 0), ("s4", 0)],
        [("s1", 0), ("s3", 0), ("s5", 0)],
        [("s6", 0)],
        [("s7", 0)],
    ]


def test_a_streams_own_chunks_never_share_a_batch(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.hold()
    tickets = one.submit(*chunks_of("s", random_codes(8, 0), [2, 2, 2, 2]))
    one.release()
    heard(tickets)
    assert one.batches[1:] == [[("s", i)] for i in range(4)]


def test_first_chunks_go_ahead_but_no_stream_starves(bench: Callable[..., Bench]) -> None:
    one = bench(max_batch=1)
    heard(one.submit(CodecChunk("old", 0, random_codes(1, 0), NO_CODES, False)))
    one.hold()
    now = CodecChunk("x", 0, NO_CODES, NO_CODES, True).arrived
    later = [
        CodecChunk("old", 1, random_codes(1, 1), NO_CODES, True, arrived=now),
        CodecChunk("new", 0, random_codes(1, 2), NO_CODES, False, arrived=now + 1),
        CodecChunk("new", 1, random_codes(1, 2), NO_CODES, True, arrived=now + 1.5),
        CodecChunk("newer", 0, random_codes(1, 3), NO_CODES, True, arrived=now + FIRST_CHUNK_LEAD + 1),
    ]
    tickets = one.submit(*later)
    one.release()
    heard(tickets)
    assert one.order[2:] == [("new", 0), ("old", 1), ("new", 1), ("newer", 0)]


def test_the_stream_with_the_least_audio_left_comes_first(bench: Callable[..., Bench]) -> None:
    now = time.monotonic()
    one = bench(max_batch=1, clock=lambda: now)  # else nothing is left of either after 50 ms
    heard(one.submit(CodecChunk("much", 0, random_codes(50, 0), NO_CODES, False)))
    heard(one.submit(CodecChunk("little", 0, random_codes(5, 0), NO_CODES, False)))
    one.hold()
    later = [CodecChunk(name, 1, random_codes(1, 1), NO_CODES, True) for name in ("much", "little")]
    tickets = one.submit(*later, CodecChunk("new", 0, random_codes(1, 2), NO_CODES, True, arrived=now))
    one.release()
    heard(tickets)
    assert one.order[3:] == [("new", 0), ("little", 1), ("much", 1)]
    one.worker.close()
    assert not one.worker._waiting._playback


def test_a_reference_is_prepared_when_nothing_else_is_to_do(bench: Callable[..., Bench]) -> None:
    one, context, codes = bench(), random_codes(20, 1), random_codes(3, 0)
    one.hold()
    one.worker.prepare(Reference(context))
    one.worker.prepare(Reference(context + 1000))  # a bad chunk; the error comes with the last one
    before = one.submit(CodecChunk("other", 0, codes, NO_CODES, True))
    one.release()
    assert isinstance(before[0].wait(), Decoded)
    until(lambda: one.code2wav.primed_bytes > 0)
    [ticket] = one.submit(CodecChunk("a", 0, codes, context, True))
    answer = ticket.wait()
    assert isinstance(answer, Decoded) and answer.primed == "miss"


def test_a_reference_that_breaks_the_decoder_costs_no_stream(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, codes = bench(), random_codes(4, 0)

    def broken(context: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(one.code2wav, "prepare", broken)
    one.hold()
    [first] = one.submit(CodecChunk("a", 0, codes[:2], NO_CODES, False))
    one.worker.prepare(Reference(random_codes(20, 1)))
    one.release()
    assert isinstance(first.wait(), Decoded)
    [last] = one.submit(CodecChunk("a", 1, codes[2:], NO_CODES, True))
    assert isinstance(last.wait(), Decoded)
    assert first.answers == [first.wait()] and one.lost_streams == []


def test_references_that_wait_are_bounded(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench()
    prepared: list[int] = []
    monkeypatch.setattr(one.code2wav, "prepare", lambda reference: prepared.append(int(reference.context[0, 0])))
    one.hold()
    for number in range(MAX_REFERENCES + 5):
        one.worker.prepare(Reference(np.full((1, 4), number, np.int32)))
    one.release()
    until(lambda: len(prepared) == MAX_REFERENCES)
    assert prepared == list(range(5, MAX_REFERENCES + 5))


def test_batch_work_waits_for_the_first_chunk_of_a_listener(bench: Callable[..., Bench]) -> None:
    """The state after the reference is computed meanwhile, and the worker does not turn round and round."""
    one = bench()
    codes, context = random_codes(4, 0), random_codes(3, 1)
    one.hold()
    jobs = one.submit(*(CodecChunk(f"job {i}", 0, codes, NO_CODES, True) for i in range(3)), caller=Caller("", "batch"))
    one.worker.expect("mine")
    one.worker.prepare(Reference(context))
    one.release()
    until(lambda: one.code2wav.primed_bytes > 0)
    [mine] = one.submit(CodecChunk("mine", 0, codes[:1], context, True))
    heard([mine])
    heard(jobs)
    assert [batch for batch in one.batches if batch != [("hold", 0)]] == [
        [("mine", 0)], [("job 0", 0)], [("job 1", 0)], [("job 2", 0)]
    ]  # fmt: skip
