"""The decoding thread: each stream in order, first chunks first, and no stream's end is another's."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.same_audio import assert_same_audio
from tests.support.small_codec import FORM, NO_CODES, SMALL, chunks_of, make_code2wav, random_codes, whole
from tests.support.waiting import until
from voice_clone.codec import worker as code2wav_worker
from voice_clone.codec.chunk import CodecChunk, Decoded, Reference
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.codec.worker import FIRST_CHUNK_LEAD, MAX_REFERENCES, Code2WavWorker, Report
from voice_clone.errors import Cancelled, DeadlineExceeded, Internal, InvalidArgument, Overloaded, VoiceCloneError
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder

WAIT = 20.0
FRAME_SECONDS = FORM.frame_seconds


class Ticket:
    """Notes its answer, and in `order` when it came."""

    def __init__(self, chunk: CodecChunk, order: list[tuple[str, int]]) -> None:
        self._chunk = chunk
        self._order = order
        self._answered = threading.Event()
        self.given_up = False
        self.broken = False
        self.answers: list[Decoded | BaseException | None] = []

    def cancelled(self) -> bool:
        return self.given_up

    def done(self, decoded: Decoded) -> None:
        if self.broken:
            raise RuntimeError("the server does not answer")
        self._note(decoded)

    def skip(self) -> None:
        assert not self._chunk.final, "nothing follows that could bring the error"
        self._note(None)

    def fail(self, error: BaseException) -> None:
        self._note(error)

    def _note(self, answer: Decoded | BaseException | None) -> None:
        self._order.append((self._chunk.stream_id, self._chunk.index))
        self.answers.append(answer)
        self._answered.set()

    def wait(self) -> Decoded | BaseException | None:
        assert self._answered.wait(WAIT), "no answer"
        [answer] = self.answers
        return answer


class Bench:
    """A worker whose decoder can be held, and all its reports."""

    def __init__(self, code2wav: Code2Wav, max_batch: int, max_queue: int) -> None:
        self.code2wav = code2wav
        self.batches: list[list[tuple[str, int]]] = []
        self.order: list[tuple[str, int]] = []
        self.lost_streams: list[str] = []
        self.answered_streams: list[str] = []
        self.reports: list[Report] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.busy = threading.Event()
        self._decode = code2wav.decode
        code2wav.decode = self._held  # type: ignore[method-assign]
        self.worker = Code2WavWorker(code2wav, max_batch, max_queue, FORM.sample_rate, self)

    def _held(self, chunks: Sequence[CodecChunk]) -> list[Any]:
        self.busy.set()
        assert self.go_on.wait(WAIT)
        if chunks:
            self.batches.append([(chunk.stream_id, chunk.index) for chunk in chunks])
        return self._decode(chunks)

    def lost(self, stream_id: str) -> None:
        self.lost_streams.append(stream_id)

    def answered(self, stream_id: str) -> None:
        self.answered_streams.append(stream_id)

    def report(self, report: Report) -> None:
        self.reports.append(report)

    def submit(self, *chunks: CodecChunk) -> list[Ticket]:
        tickets = [Ticket(chunk, self.order) for chunk in chunks]
        for chunk, ticket in zip(chunks, tickets, strict=True):
            self.worker.submit(chunk, ticket)
        return tickets

    def hold(self) -> None:
        """Keep the decoder busy with a stream of one chunk until `release`."""
        self.go_on.clear()
        self.busy.clear()
        self.submit(CodecChunk("hold", 0, random_codes(1, 0), NO_CODES, True))
        assert self.busy.wait(WAIT)

    def release(self) -> None:
        self.go_on.set()

    def ended(self) -> list[str]:
        return [ending for report in self.reports for ending in report.endings]


@pytest.fixture
def bench(decoder: CodecDecoder) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def new(max_batch: int = 4, max_queue: int = 1000, **given: Any) -> Bench:
        made.append(Bench(make_code2wav(decoder, FORM, **given), max_batch, max_queue))
        return made[-1]

    yield new
    for each in made:
        each.go_on.set()
        each.worker.close()


def heard(tickets: Sequence[Ticket]) -> np.ndarray:
    answers = [ticket.wait() for ticket in tickets]
    assert all(isinstance(answer, Decoded) for answer in answers), answers
    return np.concatenate([answer.waveform for answer in answers if isinstance(answer, Decoded)])


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
    one = bench(max_batch=1)
    heard(one.submit(CodecChunk("much", 0, random_codes(50, 0), NO_CODES, False)))
    heard(one.submit(CodecChunk("little", 0, random_codes(5, 0), NO_CODES, False)))
    one.hold()
    later = [CodecChunk(name, 1, random_codes(1, 1), NO_CODES, True) for name in ("much", "little")]
    tickets = one.submit(*later, CodecChunk("new", 0, random_codes(1, 2), NO_CODES, True))
    one.release()
    heard(tickets)
    assert one.order[3:] == [("new", 0), ("little", 1), ("much", 1)]
    one.worker.close()
    assert not one.worker._waiting._playback


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


def test_an_ended_stream_tells_how_it_was_heard(bench: Callable[..., Bench]) -> None:
    it = bench(max_batch=1)
    now = [0.0]
    it.worker._waiting._clock = lambda: now[0]
    codes = random_codes(3, 0)
    for index, (time, final) in enumerate(((0.0, False), (1.0, False), (1.0 + 0.5 * FRAME_SECONDS, True))):
        now[0] = time
        [ticket] = it.submit(CodecChunk("late", index, codes[index : index + 1], NO_CODES, final))
        ticket.wait()
    until(lambda: sum(len(report.endings) for report in it.reports) == 1)
    [heard] = [playback for report in it.reports for playback in report.playbacks]
    assert heard.underruns == 1 and heard.silence == pytest.approx(1.0 - FRAME_SECONDS)
