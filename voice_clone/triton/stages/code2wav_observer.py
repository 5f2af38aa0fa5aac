"""What code2wav reports: to the talker that a stream has ended, and to the metrics."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from voice_clone.codec.series import SERIES
from voice_clone.codec.worker import Report
from voice_clone.metrics import SeriesTable
from voice_clone.triton.calls import cancel_stream
from voice_clone.triton.stages.streams import talker_of
from voice_clone.triton.telemetry import Metric

PUBLISH_SECONDS = 0.2  # until a report is published while streams are open: at once, it would delay the next chunk
MAX_WAITING = 4096  # reports, and ended streams

T = TypeVar("T")

log = logging.getLogger("voice_clone.code2wav")


class Code2WavObserver:
    """The worker's observer, with a thread each for the talker and for the metrics: both are calls to the server."""

    def __init__(self, family: str) -> None:
        self._series = SeriesTable("voice_clone_code2wav_", SERIES, partial(Metric, family=family))
        self._ended_streams: queue.Queue[tuple[str, str] | None] = queue.Queue(maxsize=MAX_WAITING)
        self._reports: queue.Queue[Report | None] = queue.Queue(maxsize=MAX_WAITING)
        targets = (self._notify_talker, self._publish_reports)
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def lost(self, stream_id: str) -> None:
        """See `Observer`. A stream of another caller has no talker."""
        talker = talker_of(stream_id)
        if talker is not None:
            _put(self._ended_streams, (talker, stream_id))

    def answered(self, stream_id: str) -> None:
        """See `Observer`. A talker whose server stops waits for this."""
        self.lost(stream_id)

    def report(self, report: Report) -> None:
        _put(self._reports, report)

    def close(self) -> None:
        """Send what waits, then stop."""
        self._ended_streams.put(None)
        self._reports.put(None)
        for thread in self._threads:
            thread.join()

    def _notify_talker(self) -> None:
        """Triton does not notify the talker inside an ensemble that its stream has ended."""
        while (ended := self._ended_streams.get()) is not None:
            cancel_stream(*ended)

    def _publish_reports(self) -> None:
        while (report := self._reports.get()) is not None:
            waiting, due = [report], time.monotonic() + PUBLISH_SECONDS
            last: Report | None = report
            with contextlib.suppress(queue.Empty):
                while last is not None and last.open_streams and (left := due - time.monotonic()) > 0.0:
                    last = self._reports.get(timeout=left)
                    if last is not None:
                        waiting.append(last)
            try:
                self._publish(waiting)
            except Exception:
                log.exception("the metrics could not be updated")
            if last is None:
                return

    def _publish(self, reports: Sequence[Report]) -> None:
        now, series = reports[-1], self._series
        series("streams").set(now.open_streams)
        series("state_bytes", "streams").set(now.stream_bytes)
        series("state_bytes", "primed").set(now.primed_bytes)
        primed: Counter[str] = Counter()
        ended: Counter[str] = Counter()
        marks: Counter[str] = Counter()
        for each in reports:
            primed.update(hit=each.primed_hits, miss=each.primed_misses)
            ended.update(each.endings)
            marks.update(each.marks)
        playbacks = [playback for each in reports for playback in each.playbacks]
        if underruns := sum(playback.underruns for playback in playbacks):
            series("underruns_total").add(underruns)
        for playback in playbacks:
            series("underrun_ms").observe(1e3 * playback.silence)
        for name, counts in (("primed_total", +primed), ("marks_total", marks), ("streams_ended_total", ended)):
            for value, count in counts.items():  # without zeros
                series(name, value).add(count)
        for each in reports:
            if each.batch:
                series("batch_size").observe(each.batch)
            if each.frames:
                series("frame_ms").observe(each.decode_ms / each.frames)


def _put(waiting: queue.Queue[T | None], item: T) -> None:
    try:
        waiting.put_nowait(item)
    except queue.Full:
        log.warning("too many reports wait for the server; one was left out")
