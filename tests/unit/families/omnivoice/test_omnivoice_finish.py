"""The finish of a stream: joints, level, ends, silence; the same however the samples are cut."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.families.omnivoice_codec import cut_at_random
from voice_clone.errors import InvalidArgument
from voice_clone.families.omnivoice.config import REF_RMS, REMOVE_SILENCE, TEXT_CHUNKS
from voice_clone.families.omnivoice.finish import Finish, FinishPlan
from voice_clone.families.omnivoice.silence import SilenceFilter, remove_silence

pytestmark = pytest.mark.thorough

RATE, FRAME, EDGE = 24000, 960, 2400
PLANS = [
    FinishPlan(rms, chunks, removes)
    for rms in (0.0, 0.03, 0.2)
    for chunks in ((40,), (1,), (3, 1, 60), (30, 25))
    for removes in (False, True)
]


def noise(frames: int, seed: int = 0) -> NDArray[np.float32]:
    """Loud and silent parts by turns."""
    draw = np.random.default_rng(seed)
    loud = np.repeat(draw.choice([0.0, 1e-4, 0.1, 0.4], (frames + 9) // 10), 10 * FRAME)[: frames * FRAME]
    loud[:FRAME] = 0.4
    return (loud * draw.standard_normal(frames * FRAME)).astype(np.float32)


def finished(plan: FinishPlan, samples: NDArray[np.float32], sizes: list[int]) -> NDArray[np.float32]:
    finish, done, made = Finish(plan, RATE, FRAME), 0, []
    for size in sizes:
        made.append(finish.push(samples[done : done + size]))
        done += size
    return np.concatenate([*made, finish.end()])


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_same_however_it_is_cut(plan: FinishPlan) -> None:
    samples = noise(sum(plan.text_chunks), seed=len(plan.text_chunks))
    whole = finished(plan, samples, [len(samples)])
    for seed, most in enumerate((37, 5000, 50_000)):
        assert np.array_equal(finished(plan, samples, cut_at_random(len(samples), most, seed)), whole)
    assert np.abs(whole).max() > 0.01


def test_a_clone_is_heard_at_once_but_for_its_last_fade() -> None:
    finish = Finish(FinishPlan(0.2, (100,), remove_silence=False), RATE, FRAME)
    assert len(finish.push(np.ones(2 * EDGE - 1, np.float32))) == 0
    first = finish.push(np.ones(1, np.float32))
    assert np.array_equal(first[:EDGE], np.zeros(EDGE)) and len(first) == 2 * EDGE
    assert np.array_equal(first[EDGE:], np.linspace(0, 1, EDGE, dtype=np.float32))
    assert np.array_equal(finish.push(np.ones(10_000, np.float32)), np.ones(10_000))
    last = finish.end()
    assert np.array_equal(last, np.concatenate([np.linspace(1, 0, EDGE, dtype=np.float32), np.zeros(EDGE)]))


def test_a_voice_without_reference_waits_for_the_peak_of_its_first_chunk() -> None:
    finish = Finish(FinishPlan(0.0, (10, 50), remove_silence=False), RATE, FRAME)
    quiet = np.full(10 * FRAME, 0.2, np.float32)
    assert len(finish.push(quiet[:-1])) == 0
    first = finish.push(quiet[-1:])
    assert first.max() == 0.5
    later = np.full(20 * FRAME, 0.3, np.float32)
    assert np.isclose(finish.push(later).max(), 0.75)  # the same gain


def test_a_joint_fades_and_is_silent_between() -> None:
    plan = FinishPlan(1.0, (10, 10), remove_silence=False)
    heard = finished(plan, np.ones(20 * FRAME, np.float32), [20 * FRAME])[EDGE:-EDGE]
    joint = 10 * FRAME
    assert len(heard) == 20 * FRAME + EDGE
    assert np.array_equal(heard[joint - EDGE : joint], np.linspace(1, 0, EDGE, dtype=np.float32))
    assert not heard[joint : joint + EDGE].any()
    assert np.array_equal(heard[joint + EDGE : joint + 2 * EDGE], np.linspace(0, 1, EDGE, dtype=np.float32))


def test_silence_alone_is_an_empty_speech() -> None:
    plan = FinishPlan(0.1, (30,), remove_silence=True)
    assert len(finished(plan, np.zeros(30 * FRAME, np.float32), [30 * FRAME])) == 0
    assert len(finished(plan, np.zeros(0, np.float32), [])) == 0


def test_speech_passes_the_filter_of_silence_at_once() -> None:
    """Only what may be cut is held back."""
    silence = SilenceFilter(RATE, 500, 100, 100)
    speech = np.full(RATE, 0.1, np.float32)
    assert len(silence.push(speech[:7200])) == 7200  # its first 0.5 s cannot be silent any more
    assert len(silence.push(speech)) == RATE
    assert len(silence.push(np.zeros(RATE // 4, np.float32))) == RATE // 10  # this much stays in any case
    assert len(silence.push(speech)) == RATE + RATE // 4 - RATE // 10
    with pytest.raises(ValueError, match="multiple of 240"):
        silence.push(speech[:1])
        silence.end()


def test_the_filter_equals_the_whole() -> None:
    for seed in range(60):
        samples = noise(120, seed)
        given = SilenceFilter(RATE, 500, 100, 100)
        done, made = 0, []
        for size in cut_at_random(len(samples), 9000, seed):
            made.append(given.push(samples[done : done + size]))
            done += size
        made.append(given.end())
        assert np.array_equal(np.concatenate(made), remove_silence(samples, RATE, 500, 100, 100)), seed


def test_a_plan_travels_as_arrays() -> None:
    for plan in PLANS:
        back = FinishPlan.of(plan.arrays)
        assert back.text_chunks == plan.text_chunks and back.remove_silence == plan.remove_silence
        assert back.ref_rms == np.float32(plan.ref_rms)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (REF_RMS, None),
        (REF_RMS, np.array([np.nan], np.float32)),
        (REF_RMS, np.array([-0.1], np.float32)),
        (REF_RMS, np.array([0.1])),
        (TEXT_CHUNKS, np.array([], np.int32)),
        (TEXT_CHUNKS, np.array([3, 0], np.int32)),
        (TEXT_CHUNKS, np.array([[3]], np.int32)),
        (REMOVE_SILENCE, np.array([2], np.uint8)),
        (REMOVE_SILENCE, np.array([True])),
    ],
)
def test_wrong_arrays_are_refused(name: str, value: NDArray[np.float32] | None) -> None:
    arrays = FinishPlan(0.1, (3, 4), remove_silence=True).arrays
    if value is None:
        del arrays[name]
    else:
        arrays[name] = value
    with pytest.raises(InvalidArgument, match=f"the voice's {name} must be"):
        FinishPlan.of(arrays)
