"""What code2wav tells others: the talker of a stream that has ended, and the metrics."""

import contextlib
import logging
import queue
import threading
import time
from collections import Counter

from voice_clone.errors import VoiceCloneError
from voice_clone.triton.model import call
from voice_clone.triton.telemetry import Metric

PREFIX = "voice_clone_code2wav_"
FRAME_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)  # a frame is 80 ms of speech
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
PUBLISH_SECONDS = 0.2  # until a report is in the metrics, while streams are open: at once it would hold up its chunk

log = logging.getLogger("voice_clone.code2wav")


class Watch:
    """The worker's observer; has threads of its own, for both the talker and the metrics mean asking the server."""

    def __init__(self):
        self._streams = Metric(f"{PREFIX}streams", "Open streams", "gauge")
        self._bytes = _labelled("state_bytes", "Decoder states in memory", "gauge", "of", ("streams", "primed"))
        self._primed = _labelled("primed_total", "Streams with a reference", "counter", "result", ("hit", "miss"))
        reasons = ("finished", "cancelled", "failed", "idle")
        self._ended = _labelled("streams_ended_total", "Ended streams", "counter", "reason", reasons)
        self._frame_ms = Metric(f"{PREFIX}frame_ms", "Decoding a frame", "histogram", buckets=FRAME_MS)
        self._batch = Metric(f"{PREFIX}batch_size", "Chunks decoded together", "histogram", buckets=BATCH_SIZES)
        self._ended_streams = queue.Queue(maxsize=4096)
        self._reports = queue.Queue(maxsize=4096)
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._tell_talker, self._tell_metrics)]
        for thread in self._threads:
            thread.start()

    def lost(self, stream_id):
        _put(self._ended_streams, stream_id)

    def answered(self, stream_id):
        self.lost(stream_id)  # a talker whose server stops waits for this

    def report(self, report):
        _put(self._reports, report)

    def close(self):
        self._ended_streams.put(None)
        self._reports.put(None)
        for thread in self._threads:
            thread.join()

    def _tell_talker(self):
        while (stream_id := self._ended_streams.get()) is not None:
            try:
                # Triton does not tell the talker inside an ensemble that its stream has ended.
                call("qwen3_tts_talker", {"cancel": stream_id}, decoupled=True)
            except VoiceCloneError as error:
                log.info("no talker was told: %s", error)
            except Exception:
                log.exception("the talker could not be told")

    def _tell_metrics(self):
        while (report := self._reports.get()) is not None:
            reports, due = [report], time.monotonic() + PUBLISH_SECONDS
            with contextlib.suppress(queue.Empty):
                while report is not None and report.open_streams and (left := due - time.monotonic()) > 0.0:
                    report = self._reports.get(timeout=left)
                    reports.append(report)
            try:
                self._publish([each for each in reports if each is not None])
            except Exception:
                log.exception("the metrics could not be told")
            if report is None:
                return

    def _publish(self, reports):
        now = reports[-1]
        self._streams.set(now.open_streams)
        self._bytes["streams"].set(now.stream_bytes)
        self._bytes["primed"].set(now.primed_bytes)
        primed, ended = Counter(), Counter()
        for each in reports:
            primed.update(hit=each.primed_hits, miss=each.primed_misses)
            ended.update(each.endings)
        for result, count in (+primed).items():  # without zeros
            self._primed[result].add(count)
        for reason, count in ended.items():
            self._ended[reason].add(count)
        for each in reports:
            if each.batch:
                self._batch.observe(each.batch)
            if each.batch and each.frames:
                self._frame_ms.observe(each.decode_ms / (each.batch * each.frames))


def _put(todo, item):
    try:
        todo.put_nowait(item)
    except queue.Full:
        log.warning("too much to tell the server at once; left something out")


def _labelled(name, description, kind, label, values):
    return {value: Metric(f"{PREFIX}{name}", description, kind, {label: value}) for value in values}
