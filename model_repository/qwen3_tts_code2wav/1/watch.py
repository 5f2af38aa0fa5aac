"""What code2wav tells others: the talker of a stream that has ended, and the metrics."""

import logging
import queue
import threading

from voice_clone.errors import VoiceCloneError
from voice_clone.triton_io import call
from voice_clone.triton_telemetry import Metric

PREFIX = "voice_clone_code2wav_"
FRAME_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)  # a frame is 80 ms of speech
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)

log = logging.getLogger("voice_clone.code2wav")


class Watch:
    """The worker's observer; has a thread of its own, for both the talker and the metrics mean asking the server."""

    def __init__(self):
        self._streams = Metric(f"{PREFIX}streams", "Open streams", "gauge")
        self._bytes = _labelled("state_bytes", "Decoder states in memory", "gauge", "of", ("streams", "primed"))
        self._primed = _labelled("primed_total", "Streams with a reference", "counter", "result", ("hit", "miss"))
        reasons = ("finished", "cancelled", "failed", "idle")
        self._ended = _labelled("streams_ended_total", "Ended streams", "counter", "reason", reasons)
        self._frame_ms = Metric(f"{PREFIX}frame_ms", "Decoding a frame", "histogram", buckets=FRAME_MS)
        self._batch = Metric(f"{PREFIX}batch_size", "Chunks decoded together", "histogram", buckets=BATCH_SIZES)
        self._todo = queue.Queue(maxsize=4096)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def lost(self, stream_id):
        # Triton does not tell the talker inside an ensemble that its stream has ended.
        self._put(lambda: call("qwen3_tts_talker", {"cancel": stream_id}, decoupled=True))

    def answered(self, stream_id):
        self.lost(stream_id)  # a talker whose server stops waits for this

    def report(self, report):
        self._put(lambda: self._publish(report))

    def close(self):
        self._todo.put(None)
        self._thread.join()

    def _put(self, action):
        try:
            self._todo.put_nowait(action)
        except queue.Full:
            log.warning("too much to tell the server at once; left something out")

    def _run(self):
        while (action := self._todo.get()) is not None:
            try:
                action()
            except VoiceCloneError as error:
                log.info("no talker was told: %s", error)
            except Exception:
                log.exception("the server could not be told")

    def _publish(self, report):
        self._streams.set(report.open_streams)
        self._bytes["streams"].set(report.stream_bytes)
        self._bytes["primed"].set(report.primed_bytes)
        for result, count in (("hit", report.primed_hits), ("miss", report.primed_misses)):
            if count:
                self._primed[result].add(count)
        for reason in report.endings:
            self._ended[reason].add()
        if report.batch:
            self._batch.observe(report.batch)
        if report.batch and report.frames:
            self._frame_ms.observe(report.decode_ms / (report.batch * report.frames))


def _labelled(name, description, kind, label, values):
    return {value: Metric(f"{PREFIX}{name}", description, kind, {label: value}) for value in values}
