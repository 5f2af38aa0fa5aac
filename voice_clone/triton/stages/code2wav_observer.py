"""What code2wav reports: to the talker that a stream has ended, and to the metrics.

voice_clone_code2wav_streams{family}                 gauge      open streams
voice_clone_code2wav_state_bytes{family,of}          gauge      decoder states in memory; of: streams or primed
voice_clone_code2wav_primed_total{family,result}     counter    streams with a reference; result: hit or miss
voice_clone_code2wav_streams_ended_total{family,reason}  counter
voice_clone_code2wav_marks_total{family,result}      counter    finished streams; result: marked or failed
voice_clone_code2wav_underruns_total{family}         counter    chunks that came after playback had run dry
voice_clone_code2wav_underrun_ms{family}             histogram  how long a stream's listener waited in all
voice_clone_code2wav_frame_ms{family}                histogram  decoding a frame
voice_clone_code2wav_batch_size{family}              histogram  chunks decoded together
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from voice_clone.codec.worker import Report
from voice_clone.triton.calls import cancel_stream
from voice_clone.triton.stages.streams import talker_of
from voice_clone.triton.telemetry import Metric, of_family

PREFIX = "voice_clone_code2wav_"
FRAME_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
UNDERRUN_MS = (0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
PUBLISH_SECONDS = 0.2  # until a report is published while streams are open: at once, it would delay the next chunk
MAX_WAITING = 4096  # reports, and ended streams

T = TypeVar("T")

log = logging.getLogger("voice_clone.code2wav")


class Code2WavObserver:
    """The worker's observer, with a thread each for the talker and for the metrics: both are calls to the server."""

    def __init__(self, family: str) -> None:
        self._make = make = of_family(family)
        self._streams = make(f"{PREFIX}streams", "Open streams", "gauge")
        self._bytes = self._labelled("state_bytes", "Decoder states in memory", "gauge", "of", ("streams", "primed"))
        self._primed = self._labelled("primed_total", "Streams with a reference", "counter", "result", ("hit", "miss"))
        reasons = ("finished", "cancelled", "failed", "idle")
        self._ended = self._labelled("streams_ended_total", "Ended streams", "counter", "reason", reasons)
        marked = "Finished streams that were to be marked as synthetic"
        self._marks = self._labelled("marks_total", marked, "counter", "result", ("marked", "failed"))
        late = "Chunks that came after playback had run dry"
        self._underruns = make(f"{PREFIX}underruns_total", late, "counter")
        waited = "How long the listener of a stream waited for late chunks, in all"
        self._underrun_ms = make(f"{PREFIX}underrun_ms", waited, "histogram", buckets=UNDERRUN_MS)
        self._frame_ms = make(f"{PREFIX}frame_ms", "Decoding a frame", "histogram", buckets=FRAME_MS)
        self._batch = make(f"{PREFIX}batch_size", "Chunks decoded together", "histogram", buckets=BATCH_SIZES)
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
        """See `Observer`."""
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
        now = reports[-1]
        self._streams.set(now.open_streams)
        self._bytes["streams"].set(now.stream_bytes)
        self._bytes["primed"].set(now.primed_bytes)
        primed: Counter[str] = Counter()
        ended: Counter[str] = Counter()
        marks: Counter[str] = Counter()
        for each in reports:
            primed.update(hit=each.primed_hits, miss=each.primed_misses)
            ended.update(each.endings)
            marks.update(each.marks)
        playbacks = [playback for each in reports for playback in each.playbacks]
        if underruns := sum(playback.underruns for playback in playbacks):
            self._underruns.add(underruns)
        for playback in playbacks:
            self._underrun_ms.observe(1e3 * playback.silence)
        for result, count in (+primed).items():  # without zeros
            self._primed[result].add(count)
        for result, count in marks.items():
            self._marks[result].add(count)
        for reason, count in ended.items():
            self._ended[reason].add(count)
        for each in reports:
            if each.batch:
                self._batch.observe(each.batch)
            if each.frames:
                self._frame_ms.observe(each.decode_ms / each.frames)

    def _labelled(self, name: str, description: str, kind: str, label: str, values: Sequence[str]) -> dict[str, Metric]:
        return {value: self._make(f"{PREFIX}{name}", description, kind, {label: value}) for value in values}


def _put(waiting: queue.Queue[T | None], item: T) -> None:
    try:
        waiting.put_nowait(item)
    except queue.Full:
        log.warning("too many reports wait for the server; one was left out")
