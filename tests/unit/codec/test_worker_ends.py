"""Ends of streams in the decoding thread: no stream's end is another's, and nothing is left."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.codec_bench import Bench, Ticket, heard
from tests.support.families.small_codec import FORM, NO_CODES, SMALL, chunks_of, random_codes, whole
from tests.support.same_audio import assert_same_audio
from tests.support.waiting import until
from voice_clone.codec import worker as code2wav_worker
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.errors import Cancelled, DeadlineExceeded, Internal, InvalidArgument, Overloaded, VoiceCloneError
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.turns import Caller

FRAME_SECONDS = FORM.frame_seconds


def test_a_cancelled_stream_is_dropped_and_its_talker_notified(
    decoder: CodecDecoder, bench: Callable[..., Bench]
) -> None:
    """The error waits for the final chunk: see the worker's docstring."""
    one = bench()
    codes = random_codes(8, 0)
    first, second, third = chunks_of("s", codes, [2, 3, 3], random_codes(5, 1))
    gone = chunks_of("gone", random_codes(9, 1), [2, 3, 3, 1])
    tickets = one.submit(first, gone[0])
    heard(tickets)
    one.hold()
    doomed = one.submit(gone[1])
    doomed[0].given_up = True
    tickets[1:] = one.submit(second, third)
    one.release()
    assert doomed[0].wait() is None
    assert not one.code2wav.is_open("gone") and one.lost_streams == ["gone"]
    doomed += one.submit(*gone[2:])
    assert doomed[1].wait() is None and isinstance(doomed[2].wait(), Cancelled)
    assert_same_audio(heard(tickets), whole(decoder, codes, random_codes(5, 1)))
    one.worker.close()
    assert one.lost_streams == ["gone"], "reported once"
    assert sorted(one.ended()) == ["cancelled", "finished", "finished"]
    assert one.code2wav.streams == 0


def test_an_abandoned_stream_is_dropped_without_another_chunk(
    decoder: CodecDecoder, bench: Callable[..., Bench]
) -> None:
    one = bench()
    codes = random_codes(8, 0)
    kept = chunks_of("s", codes, [2, 6])
    gone = chunks_of("gone", random_codes(6, 1), [2, 3, 1])
    tickets = one.submit(kept[0], gone[0])
    heard(tickets)
    one.hold()
    waiting = one.submit(gone[1])
    one.worker.abandon("gone")
    assert one.lost_streams == ["gone"], "its talker need not wait for the decoder"
    one.release()
    waiting += one.submit(gone[2])
    assert waiting[0].wait() is None and isinstance(waiting[1].wait(), Cancelled)
    assert not one.code2wav.is_open("gone")
    assert_same_audio(heard([tickets[0], *one.submit(kept[1])]), whole(decoder, codes))
    one.worker.close()
    assert sorted(one.ended()) == ["cancelled", "finished", "finished"] and one.code2wav.streams == 0


def test_an_idle_worker_drops_an_abandoned_stream(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code2wav_worker, "SWEEP_SECONDS", 3600.0)  # it does not just happen to wake up
    one = bench()
    heard(one.submit(CodecChunk("s", 0, random_codes(1, 0), NO_CODES, False)))
    one.worker.abandon("s")
    until(lambda: one.ended())
    assert one.ended() == ["cancelled"] and one.reports[-1].open_streams == 0


def test_abandoning_a_stream_that_is_not_open_does_no_harm(decoder: CodecDecoder, bench: Callable[..., Bench]) -> None:
    one = bench()
    for _ in range(2):
        one.worker.abandon("s")
    codes = random_codes(6, 0)
    assert_same_audio(heard(one.submit(*chunks_of("s", codes, [2, 4]))), whole(decoder, codes))
    one.worker.close()
    assert one.lost_streams == ["s", "s"] and one.ended() == ["finished"]


@pytest.mark.parametrize(
    ("error", "ending"), [(DeadlineExceeded("too late"), "failed"), (Cancelled("gone"), "cancelled")]
)
def test_a_failure_of_the_talker_ends_the_stream(
    bench: Callable[..., Bench], error: VoiceCloneError, ending: str
) -> None:
    one = bench()
    tickets = one.submit(
        CodecChunk("s", 0, random_codes(2, 0), NO_CODES, False), CodecChunk("s", 1, NO_CODES, NO_CODES, True, error)
    )
    heard(tickets[:1])
    assert tickets[1].wait() is error
    one.worker.close()
    assert one.code2wav.streams == 0 and one.lost_streams == [] and one.ended() == [ending]
    assert one.answered_streams == ["s"]


def test_the_id_of_a_broken_stream_can_be_used_again(decoder: CodecDecoder, bench: Callable[..., Bench]) -> None:
    one = bench()
    codes = random_codes(6, 0)
    [broken] = one.submit(CodecChunk("s", 0, codes, NO_CODES, False, Internal("broken")))
    assert broken.wait() is None
    assert_same_audio(heard(one.submit(*chunks_of("s", codes, [2, 4]))), whole(decoder, codes))


def test_the_memory_of_broken_streams_is_bounded(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code2wav_worker, "MAX_BROKEN", 3)
    one = bench()
    late = [CodecChunk(f"s{i}", 0, NO_CODES, NO_CODES, False, Internal("broken")) for i in range(10)]
    assert [ticket.wait() for ticket in one.submit(*late)] == [None] * 10
    one.worker.close()
    assert len(one.worker._broken) == 3


def test_an_intruder_is_refused_and_the_stream_goes_on(decoder: CodecDecoder, bench: Callable[..., Bench]) -> None:
    one = bench()
    codes = random_codes(9, 0)
    chunks = chunks_of("s", codes, [2, 3, 4])
    tickets = one.submit(chunks[0])
    for intruder in (
        CodecChunk("s", 0, random_codes(2, 1), NO_CODES, True),
        CodecChunk("s", 2, random_codes(2, 1), NO_CODES, True),
        CodecChunk("s", 1, np.full((2, 4), SMALL.codebook_size, np.int32), NO_CODES, True),
        CodecChunk("s", 1, np.zeros((2, 5), np.int32), NO_CODES, True),
    ):
        [refused] = one.submit(intruder)
        assert isinstance(refused.wait(), InvalidArgument)
    tickets += one.submit(*chunks[1:])
    assert_same_audio(heard(tickets), whole(decoder, codes))
    one.worker.close()
    assert one.lost_streams == [] and one.ended() == ["finished"]


def test_a_talkers_stream_ends_with_a_wrong_chunk_and_its_error_waits_for_the_last(bench: Callable[..., Bench]) -> None:
    """Whatever is wrong, and wherever: nothing but the last chunk may be answered with an error."""
    one = bench(max_chunk_frames=20)
    good, none = random_codes(2, 0), NO_CODES
    wrong: list[tuple[int, dict[str, Any]]] = [
        (0, {"context": random_codes(21, 1)}),
        (0, {"payload": random_codes(21, 1)}),
        (0, {"payload": np.full((2, 4), SMALL.codebook_size, np.int32)}),
        (0, {"payload": np.zeros((2, 5), np.int32)}),
        (0, {"payload": np.zeros((2, 4), np.float32)}),
        (0, {"failure": InvalidArgument("it cannot be read")}),
        (1, {"payload": np.full((2, 4), -1, np.int32)}),
        (1, {"context": random_codes(2, 1)}),
        (1, {"index": 7}),
    ]
    for number, (at, given) in enumerate(wrong):
        name = f"s{number}"
        chunks = [CodecChunk(name, index, good, none, False, from_talker=True) for index in range(3)]
        chunks[at] = replace(chunks[at], **given)
        tickets = one.submit(*chunks, CodecChunk(name, 3, none, none, True, from_talker=True))
        answers = [ticket.wait() for ticket in tickets]
        assert all(answer is None for answer in answers[at:3]), (given, answers)
        assert isinstance(answers[3], InvalidArgument) and all(isinstance(each, Decoded) for each in answers[:at])
        assert not one.code2wav.is_open(name)
    one.worker.close()
    assert one.lost_streams == [f"s{number}" for number in range(len(wrong))], "each talker hears of it, once"
    assert one.answered_streams == one.lost_streams and not one.worker._broken


def test_a_queue_that_one_caller_has_filled_takes_chunks_of_another(bench: Callable[..., Bench]) -> None:
    one = bench(max_queue=2)
    one.hold()
    many = one.submit(*chunks_of("many", random_codes(6, 0), [1, 2, 3]))
    mine = one.submit(*chunks_of("mine", random_codes(1, 1), [1]), caller=Caller("me"))
    one.release()
    heard(mine)
    assert isinstance(many[2].wait(), Overloaded)


def test_the_talker_of_a_stream_that_is_not_open_is_notified(bench: Callable[..., Bench]) -> None:
    one = bench()
    [ticket] = one.submit(CodecChunk("lost", 3, random_codes(1, 0), NO_CODES, False))
    assert isinstance(ticket.wait(), InvalidArgument)
    one.worker.close()
    assert one.lost_streams == ["lost"]


def test_a_full_queue_ends_the_stream_that_finds_it_full(decoder: CodecDecoder, bench: Callable[..., Bench]) -> None:
    one = bench(max_queue=2)
    codes = random_codes(6, 0)
    chunks = chunks_of("s", codes, [1, 2, 3])
    late = chunks_of("late", random_codes(3, 1), [1, 1, 1])
    heard(one.submit(late[0]))
    one.hold()
    tickets = one.submit(*chunks[:2])
    refused = one.submit(*late[1:])
    assert all(not entry.chunk.payload.size for entry in one.worker._waiting._waiting["late"]), "no codes are kept"
    one.release()
    heard(tickets)
    tickets += one.submit(chunks[2])
    assert_same_audio(heard(tickets), whole(decoder, codes))
    assert refused[0].wait() is None and isinstance(refused[1].wait(), Overloaded)
    one.worker.close()
    assert one.lost_streams == ["late"] and "failed" in one.ended()
    assert one.code2wav.streams == 0


def test_idle_streams_are_swept_without_a_request(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code2wav_worker, "SWEEP_SECONDS", 0.02)
    one = bench(idle_seconds=0.05)
    heard(one.submit(CodecChunk("s", 0, random_codes(1, 0), NO_CODES, False)))
    until(lambda: one.lost_streams)
    [ticket] = one.submit(CodecChunk("s", 1, random_codes(1, 0), NO_CODES, True))
    assert isinstance(ticket.wait(), DeadlineExceeded)
    one.worker.close()
    assert one.lost_streams == ["s"] and one.ended() == ["idle"]
    assert one.reports[-1].open_streams == 0


def test_an_answer_that_cannot_be_sent_ends_its_stream_alone(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.hold()
    tickets = one.submit(*(CodecChunk(name, 0, random_codes(1, i), NO_CODES, False) for i, name in enumerate("abc")))
    tickets[1].broken = True
    one.release()
    heard([tickets[0], tickets[2]])
    assert tickets[1].wait() is None
    [last] = one.submit(CodecChunk("b", 1, NO_CODES, NO_CODES, True))
    assert isinstance(last.wait(), Internal)
    one.worker.close()
    assert one.lost_streams == ["b"] and one.code2wav.is_open("a") and one.code2wav.is_open("c")


def test_random_ends_leave_nothing(decoder: CodecDecoder, bench: Callable[..., Bench]) -> None:
    """200 streams that finish, are cancelled, break, repeat or skip a chunk, at random."""
    one, chance = bench(), random.Random(0)
    tickets: list[Ticket] = []
    expected: dict[str, tuple[np.ndarray, list[Ticket]]] = {}
    for number in range(200):
        name, codes = f"s{number}", random_codes(7, number)
        chunks = chunks_of(name, codes, [1, 2, 4])
        end = chance.choice(["finish", "cancel", "break", "skip"])
        if end == "skip":
            chunks = [chunks[0], chunks[2]]
        sent = [Ticket(chunk, one.order) for chunk in chunks]
        sent[1].given_up = end == "cancel"
        sent[1].broken = end == "break"
        for chunk, ticket in zip(chunks, sent, strict=True):
            one.worker.submit(chunk, ticket)
        if end == "finish":
            expected[name] = codes, sent
        if end == "skip":  # what is still open is swept in time; here another chunk closes it
            sent += one.submit(chunks_of(name, codes, [1, 6])[1])
        tickets += sent
    one.worker.close()
    assert all(len(ticket.answers) == 1 for ticket in tickets)
    for codes, sent in expected.values():
        assert_same_audio(heard(sent), whole(decoder, codes))
    assert one.code2wav.streams == 0 and one.reports[-1].open_streams == 0
    assert not set(one.lost_streams) & set(expected)


def test_an_ended_stream_reports_how_it_was_heard(bench: Callable[..., Bench]) -> None:
    now = [0.0]
    it = bench(max_batch=1, clock=lambda: now[0])
    codes = random_codes(3, 0)
    for index, (time, final) in enumerate(((0.0, False), (1.0, False), (1.0 + 0.5 * FRAME_SECONDS, True))):
        now[0] = time
        [ticket] = it.submit(CodecChunk("late", index, codes[index : index + 1], NO_CODES, final))
        ticket.wait()
    until(lambda: sum(len(report.endings) for report in it.reports) == 1)
    [heard] = [playback for report in it.reports for playback in report.playbacks]
    assert heard.underruns == 1 and heard.silence == pytest.approx(1.0 - FRAME_SECONDS)
