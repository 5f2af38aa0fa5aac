"""A decoding thread whose decoder can be held, with all that it answers and reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.families.small_codec import NO_CODES, random_codes
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.codec.worker import Code2WavWorker, Report
from voice_clone.turns import PLAIN, Caller

WAIT = 20.0


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

    def __init__(self, code2wav: Code2Wav, max_queue: int, clock: Callable[[], float] = time.monotonic) -> None:
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
        self.worker = Code2WavWorker(code2wav, max_queue, self, clock)

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

    def submit(self, *chunks: CodecChunk, caller: Caller = PLAIN) -> list[Ticket]:
        tickets = [Ticket(chunk, self.order) for chunk in chunks]
        for chunk, ticket in zip(chunks, tickets, strict=True):
            self.worker.submit(chunk, ticket, caller)
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


def heard(tickets: Sequence[Ticket]) -> NDArray[np.float32]:
    """The samples of a stream's answers, none of which is an error."""
    answers = [ticket.wait() for ticket in tickets]
    assert all(isinstance(answer, Decoded) for answer in answers), answers
    return np.concatenate([answer.waveform for answer in answers if isinstance(answer, Decoded)])
