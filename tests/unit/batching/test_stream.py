"""When a stream's frames go out: by the schedule, and earlier where a listener would hear a gap."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from voice_clone.batching.source import Frame, PayloadForm
from voice_clone.batching.stream import FrameChunk, Playback, Sink, Stream

FRAME_SECONDS = 0.08
RAMP = (1, 2, 4, 8, 12)


class Nowhere:
    def chunk(self, chunk: FrameChunk) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def cancelled(self) -> bool:
        return False


@pytest.fixture
def clock() -> list[float]:
    """The time in a list of one."""
    return [100.0]


def chunks(clock: list[float], step: Callable[[], float], frames: int, frame_seconds: float) -> list[tuple[float, int]]:
    """(time, frames) of the chunks of a stream whose frames take `step()` seconds each."""
    sink: Sink = Nowhere()
    stream: Stream[None] = Stream("s", None, sink, RAMP, PayloadForm(2), frame_seconds, clock=lambda: clock[0])
    made = []
    for number in range(frames):
        clock[0] += step()
        finish = "length" if number == frames - 1 else None
        made += [(clock[0], len(chunk.payload)) for chunk in stream.add(Frame(np.zeros(2, np.int32), finish))]
    assert sum(count for _, count in made) == frames
    return made


def stalls(made: list[tuple[float, int]], transport: float) -> int:
    """Chunks that come after playback has run dry; each takes `transport` seconds to arrive."""
    found, heard_until = 0, made[0][0] + transport
    for sent, count in made:
        found += sent + transport > heard_until
        heard_until = max(sent + transport, heard_until) + count * FRAME_SECONDS
    return found


@pytest.mark.parametrize("step", [0.001, 0.005, 0.02, 0.039])
def test_a_fast_model_keeps_to_the_schedule_and_has_no_gap(clock: list[float], step: float) -> None:
    made = chunks(clock, lambda: step, 100, FRAME_SECONDS)
    if step < 0.02:
        assert [count for _, count in made[:5]] == list(RAMP)
    assert stalls(made, 0.01) == 0


@pytest.mark.parametrize("step", [0.05, 0.06, 0.075])
def test_a_model_just_faster_than_speech_has_no_gap(clock: list[float], step: float) -> None:
    assert stalls(chunks(clock, lambda: step, 100, FRAME_SECONDS), 0.01) == 0
    assert stalls(chunks(clock, lambda: step, 100, 0.0), 0.01) > 0  # it would have, by the schedule alone


def test_a_model_slower_than_speech_keeps_its_chunks_large(clock: list[float]) -> None:
    made = chunks(clock, lambda: 0.4, 200, FRAME_SECONDS)
    assert [count for _, count in made] == [count for _, count in chunks(clock, lambda: 0.4, 200, 0.0)]


def test_chunks_grow_again_once_the_listener_has_enough(clock: list[float]) -> None:
    made = chunks(clock, lambda: 0.05, 200, FRAME_SECONDS)
    assert made[-2][1] == RAMP[-1]


def test_no_frame_is_lost_at_any_pace(clock: list[float]) -> None:
    draw = random.Random(1)
    for _ in range(50):
        chunks(clock, lambda: draw.expovariate(1 / draw.choice((0.01, 0.08, 0.5))), draw.randint(1, 60), FRAME_SECONDS)


@pytest.mark.parametrize("sizes", [(40,), (3, 37), (1,) * 40, (7, 0, 33)], ids=str)
def test_a_run_of_frames_is_cut_as_single_frames_are(clock: list[float], sizes: tuple[int, ...]) -> None:
    """A source may make many frames in a step, or none; the chunks are those of the schedule."""
    stream: Stream[None] = Stream("s", None, Nowhere(), RAMP, PayloadForm(2, np.float32), clock=lambda: clock[0])
    frames = np.arange(80, dtype=np.float32).reshape(40, 2)
    made, begin = [], 0
    for place, size in enumerate(sizes):
        finish = "stop" if place == len(sizes) - 1 else None
        payload = frames[begin : begin + size] if size else None
        made += stream.add(Frame(payload, finish))
        begin += size
    assert [len(chunk.payload) for chunk in made] == [1, 2, 4, 8, 12, 12, 1]
    assert [chunk.index for chunk in made] == list(range(7))
    assert [chunk.frames for chunk in made] == [1, 3, 7, 15, 27, 39, 40]
    assert [chunk.finish for chunk in made] == [None] * 6 + ["stop"]
    joined = np.concatenate([chunk.payload for chunk in made])
    assert joined.dtype == np.float32 and np.array_equal(joined, frames)


def test_a_late_chunk_is_an_underrun_and_an_early_one_is_not() -> None:
    playback = Playback(0.08)
    playback.add(1, 10.0)
    playback.add(2, 10.05)  # in time: heard until 10.24
    assert (playback.underruns, playback.silence) == (0, 0.0)
    playback.add(1, 10.54)  # 0.3 s late
    playback.add(1, 10.62 + 0.2)
    assert playback.underruns == 2 and playback.silence == pytest.approx(0.5)
    playback.add(0, 99.0)  # the last chunk may be empty: it is not late
    assert playback.underruns == 2 and playback.silence == pytest.approx(0.5)


def test_what_nothing_follows_for_long_goes_out_before_its_chunk_is_full(clock: list[float]) -> None:
    stream: Stream[None] = Stream("s", None, Nowhere(), RAMP, PayloadForm(2), 0.0, clock=lambda: clock[0])
    runs = [Frame(np.zeros((count, 2), np.int32), None, flush=True) for count in (5, 1, 12)]
    assert [[len(chunk.payload) for chunk in stream.add(run)] for run in runs] == [[1, 2, 2], [1], [12]]
    assert stream.add(Frame(np.zeros((3, 2), np.int32), None)) == []
    assert [len(chunk.payload) for chunk in stream.add(Frame(None, "stop"))] == [3]
