"""The statistics of the engine: what is counted, and when it can be seen."""

from __future__ import annotations

import time

import pytest

from tests.support.doubles.counted_frames import WAIT, Collector, Counter, Wish, submit
from tests.support.waiting import until
from voice_clone.batching.engine import Engine
from voice_clone.batching.statistics import REASONS, Statistics
from voice_clone.errors import Overloaded, VoiceCloneError

# Errors before the engine knows the stream: of the request, which the talker checks first, and of voices.
NOT_OF_STREAMS = {
    *("speaker_not_found", "stream_not_found", "speaker_exists", "name_reserved"),
    *("permission_denied", "quota_exceeded", "unsupported"),
}
FINISHES = {"stop", "length", "budget", "runaway", "text_timeout", "text_left"}


def test_each_error_has_a_series_or_never_ends_a_stream() -> None:
    """One without a series would count as `internal`."""
    slugs = {error.slug for error in VoiceCloneError.__subclasses__()}
    assert set(REASONS) == FINISHES | slugs - NOT_OF_STREAMS
    assert len(set(REASONS)) == len(REASONS) and slugs >= NOT_OF_STREAMS


class Meter:
    """A series that remembers."""

    made: dict[tuple[str, str], Meter]
    seen: list[tuple[str, float]]  # the updates, in their order

    def __init__(
        self, name: str, description: str, kind: str, labels: dict[str, str] | None = None, buckets: object = None
    ) -> None:
        assert description and (kind == "histogram") == (buckets is not None)
        self.value = 0.0
        self.observed: list[float] = []
        self.name = name
        self.made[name, (labels or {}).get("reason", "")] = self

    def add(self, amount: float = 1.0) -> None:
        self.value += amount
        self.seen.append((self.name, self.value))

    def set(self, value: float) -> None:
        self.value = value
        self.seen.append((self.name, value))

    def observe(self, value: float) -> None:
        self.observed.append(value)
        self.seen.append((self.name, value))


def test_the_end_of_a_stream_is_published_last(source: Counter) -> None:
    Meter.made, Meter.seen = {}, []
    engine: Engine[Wish] = Engine(source, schedule=(1, 2), max_queue=1, statistics=Statistics("x_", Meter, 0.5))
    for name, wish in (("a", Wish(0, 4)), ("b", Wish(0, 9, fail_at=3))):
        Meter.seen.clear()
        submit(engine, name, wish).wait()
        until(lambda: ("x_streams_total", 1.0) in Meter.seen)
        before = Meter.seen[: Meter.seen.index(("x_streams_total", 1.0))]
        assert [value for name, value in before if name == "x_live_streams"][-1:] in ([0.0], [])
        assert {"x_frames_total", "x_speech_seconds_total", "x_frame_ms"} <= {name for name, _ in before}
    engine.close()


def test_statistics(source: Counter) -> None:
    Meter.made, Meter.seen = {}, []
    engine: Engine[Wish] = Engine(source, schedule=(1, 2), max_queue=1, statistics=Statistics("x_", Meter, 0.5))
    source.free_running = False
    live = [submit(engine, "a", Wish(0, 4))]
    until(lambda: not engine.turns)
    live.append(submit(engine, "b", Wish(0, 4, empty_end=True)))
    source.gate.release(1)
    until(lambda: not engine.turns)
    waiting = submit(engine, "c", Wish(0, 10**9))
    with pytest.raises(Overloaded):
        submit(engine, "d", Wish(0, 1))
    until(lambda: (Meter.made["x_live_streams", ""].value, Meter.made["x_waiting_streams", ""].value) == (2, 1))
    source.free_running = True
    source.gate.release(1000)
    for collector in live:
        collector.wait()
    engine.cancel("c")
    waiting.wait()
    submit(engine, "e", Wish(0, 9, fail_at=0)).wait()
    late = Collector()
    engine.submit("f", Wish(0, 9), late, time.monotonic() - 1)
    late.wait()
    submit(engine, "g", Wish(0, 9, refuse=True)).wait()
    until(lambda: Meter.made["x_live_streams", ""].value == 0)
    engine.close()
    reasons = {reason: int(meter.value) for (name, reason), meter in Meter.made.items() if name == "x_streams_total"}
    once = ("length", "stop", "cancelled", "overloaded", "internal", "deadline_exceeded", "invalid_argument")
    assert reasons == {**dict.fromkeys(once, 1), "budget": 0, "runaway": 0, "text_timeout": 0, "text_left": 0}
    made = Meter.made["x_frames_total", ""].value
    assert made >= 8
    factors = Meter.made["x_real_time_factor", ""].observed
    assert 2 <= len(factors) <= 3 and all(0 < factor < WAIT / 0.5 for factor in factors)
    for name in ("queue_ms", "prefill_ms", "first_frame_ms", "frame_ms", "chunk_gap_ms"):
        observed = Meter.made[f"x_{name}", ""].observed
        assert 2 <= len(observed) <= 3 and all(0 <= value < 1e3 * WAIT for value in observed)  # c may have had frames
