"""SourceSteps that are begun before the frames of the one before are known, and streams that move to other memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.support.doubles.counted_frames import WAIT, Collector
from tests.support.families.graph_safety import Recorder
from tests.support.families.talkers import codes_of, make_prompt, make_restless, make_talker, read_config
from voice_clone.autoregressive import static_step
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.batching.engine import Engine
from voice_clone.batching.scheduler import SourceSteps
from voice_clone.batching.source import Frame
from voice_clone.batching.stream import Stream as EngineStream
from voice_clone.errors import DeadlineExceeded
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.layers.graphs import GraphRunner

pytestmark = pytest.mark.thorough

MAX_LENGTH, SLOTS, CASES = 96, 5, 9
Codes = npt.NDArray[np.int32]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSConfig:
    return read_config("equal", tmp_path_factory.mktemp("checkpoint") / "folder")


@pytest.fixture(scope="module")
def talker(config: Qwen3TTSConfig) -> Talker:
    """Some of its streams end by themselves."""
    talker = make_talker(config, 3)
    make_restless(talker.codec_head, 3)
    return talker


@pytest.fixture(scope="module")
def calm(config: Qwen3TTSConfig) -> Talker:
    """None of its streams does."""
    return make_talker(config, 0)


@pytest.fixture(scope="module")
def cases(config: Qwen3TTSConfig) -> list[TalkerRequest[Prompt]]:
    return [
        TalkerRequest(
            make_prompt(config, number, icl=number % 2 == 0),
            SamplingParameters(seed=number, do_sample=number != 4, repetition_penalty=1.2),
            3 + 2 * number,
        )
        for number in range(CASES)
    ]


@pytest.fixture(scope="module")
def alone(talker: Talker, cases: list[TalkerRequest[Prompt]]) -> list[tuple[Codes, str]]:
    """Each stream's codes and finish, in steps of its own shape, one after the other."""
    generator, found = Generator(talker, 1, MAX_LENGTH), []
    for case in cases:
        generator.start(0, case)
        frames = [generator.step([0])[0]]
        while not frames[-1].finish:
            frames += generator.step([0])
        generator.free(0)
        found.append((stacked(frames), str(frames[-1].finish)))
    assert {finish for _, finish in found} == {"stop", "length"}
    return found


@pytest.fixture(autouse=True)
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_step, "LEAST_LENGTH", 32)
    monkeypatch.setattr(static_step, "LEAST_POSITIONS", 16)


def stacked(frames: list[Frame]) -> Codes:
    rows = [frame.payload for frame in frames if frame.payload is not None]
    return np.stack(rows) if rows else np.zeros((0, 16), np.int32)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_codes_and_ends_are_those_of_steps_in_turn(
    talker: Talker,
    cases: list[TalkerRequest[Prompt]],
    alone: list[tuple[Codes, str]],
    seed: int,
    deterministic: bool,
) -> None:
    """Streams join any free slot at any time, pause, and every third one leaves in the middle."""
    generator = Generator(talker, SLOTS, MAX_LENGTH, deterministic, runner=GraphRunner(Recorder()))
    assert generator.ahead
    rng = np.random.default_rng(seed)
    waiting, live, made = list(range(CASES)), dict[int, int](), [list[Frame]() for _ in cases]
    before: tuple[list[tuple[int, int]], Callable[[], list[Frame | None]]] | None = None
    while waiting or live or before:
        free = [slot for slot in range(SLOTS) if slot not in live]
        if waiting and free and rng.random() < 0.7:
            slot = int(rng.choice(free))
            live[slot] = waiting.pop(0)
            generator.start(slot, cases[live[slot]])
        chosen = [int(slot) for slot in rng.permutation(list(live)) if rng.random() < 0.8]
        begun = ([(slot, live[slot]) for slot in chosen], generator.begin(chosen)) if chosen else None
        for (slot, case), frame in zip(before[0], before[1](), strict=True) if before else []:
            if frame is None or live.get(slot) != case:
                continue
            made[case].append(frame)
            if frame.finish or (case % 3 == 2 and len(made[case]) == 2):
                generator.free(slot)
                del live[slot]
        before = begun
    for case, (codes, finish) in enumerate(alone):
        got = stacked(made[case])
        np.testing.assert_array_equal(got, codes[: len(got)])
        if case % 3 != 2:
            assert (len(got), made[case][-1].finish) == (len(codes), finish)


def test_an_engine_serves_them_alike(
    talker: Talker, cases: list[TalkerRequest[Prompt]], alone: list[tuple[Codes, str]]
) -> None:
    """More streams than slots; one is cancelled, one has no time left; prompts are read in pieces between the steps."""
    generator = Generator(talker, 3, MAX_LENGTH, runner=GraphRunner(), prefill_chunk=16)
    now, begun = [0.0], threading.Event()
    engine = Engine(generator, (1, 2, 4), max_queue=CASES, prefill_chunk=16, clock=lambda: now[0])

    class Leaving(Collector):
        def chunk(self, chunk: Any) -> None:
            super().chunk(chunk)
            self.left = True
            begun.set()

    left, late = Leaving(), Collector()
    engine.submit("left", TalkerRequest(cases[0].prompt, SamplingParameters(seed=100), 60), left)
    assert begun.wait(WAIT)
    collectors = [Collector() for _ in cases]
    for number, (case, collector) in enumerate(zip(cases, collectors, strict=True)):
        engine.submit(str(number), case, collector)
    engine.submit("late", cases[0], late, deadline=-1.0)
    for collector, (codes, finish) in zip(collectors, alone, strict=True):
        rows = [row for chunk in collector.wait().chunks for row in chunk.payload]
        assert (len(rows), collector.chunks[-1].finish) == (len(codes), finish)
        assert not rows or np.array_equal(np.stack(rows), codes)
    engine.cancel("left")
    engine.close()
    assert isinstance(late.wait().error, DeadlineExceeded) and left.wait().chunks[-1].finish != "error"


def test_streams_that_are_tried_alone_keep_their_codes(
    calm: Talker, config: Qwen3TTSConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of all fails for once; then each stream's step is begun before the host looks at any of them."""
    requests = [TalkerRequest(make_prompt(config, seed), SamplingParameters(seed=seed), 8) for seed in range(4)]
    lone, generator = Generator(calm, 1, MAX_LENGTH), Generator(calm, 4, MAX_LENGTH, runner=GraphRunner())
    expected = []
    for slot, request in enumerate(requests):
        lone.start(0, request)
        expected.append(codes_of(lone, 0))
        generator.prefill({slot: generator.start(slot, request)})
    whole, rows_of_steps = generator._step.begin, list[int]()

    def begin(rows: Any) -> Any:
        rows_of_steps.append(len(rows))
        if len(rows_of_steps) == 3:
            raise RuntimeError("out of memory, for once")
        return whole(rows)

    monkeypatch.setattr(generator._step, "begin", begin)
    streams = {slot: EngineStream(str(slot), slot, Collector(), (1,), generator.payload) for slot in range(4)}
    steps, made = SourceSteps(generator), [list[Codes]() for _ in requests]
    for _ in range(9):
        for slot, _, frame in steps.run(range(4), streams, lambda *_: None, pytest.fail):
            assert frame.payload is not None
            made[slot].append(frame.payload)
    assert rows_of_steps == [4, 4, 4, 1, 1, 1, 1, 4, 4, 4, 4, 4]
    for rows, codes in zip(made, expected, strict=True):
        np.testing.assert_array_equal(np.stack(rows), codes)


def test_a_late_stream_keeps_no_large_batch(calm: Talker, config: Qwen3TTSConfig) -> None:
    """Its memory moves, bit for bit, and nothing of it stays behind; others start in its old place meanwhile."""
    runner = GraphRunner(Recorder())
    generator = Generator(calm, 8, MAX_LENGTH, runner=runner)
    case = TalkerRequest(make_prompt(config, 1, icl=True), SamplingParameters(seed=9, repetition_penalty=1.3), 14)
    lone = Generator(calm, 1, MAX_LENGTH)
    lone.start(0, case)
    expected = codes_of(lone, 0)
    for slot in range(8):
        generator.start(slot, case if slot == 6 else TalkerRequest(make_prompt(config, slot), case.sampling, 14))
    made = [generator.step(range(8))[6] for _ in range(4)]
    for slot in (0, 1, 2, 3, 4, 5, 7):
        generator.free(slot)
    model, written = generator.model, generator.streams[6].written
    memories, caches = (model.hidden, model.newest, *model.memory.by_slot[:1]), (model.cache.keys, model.cache.values)
    before = [memory[6].clone() for memory in memories], [cache[:, 6].clone() for cache in caches]
    with torch.inference_mode():
        generator._compact()
    assert generator.streams[6].place == 0 and generator.live == {6}
    assert all(torch.equal(memory[0], kept) for memory, kept in zip(memories, before[0], strict=True))
    for cache, kept in zip(caches, before[1], strict=True):
        assert torch.equal(cache[:, 0, :, :written], kept[..., :written, :])
        assert not cache[:, 6, :, :written].any()
    keys = set(runner.replays)
    made += generator.step([6])
    batches = {key[1] for key in set(runner.replays) - keys if isinstance(key, tuple)}
    assert batches == {1}, "one row is computed"
    generator.start(0, TalkerRequest(make_prompt(config, 2), case.sampling, 20))  # its memory is taken
    assert generator.streams[0].place == 1
    made += [generator.step([0, 6])[1] for _ in range(9)]
    np.testing.assert_array_equal(stacked(made), expected)


def test_values_that_are_not_finite_stay_nowhere(calm: Talker, config: Qwen3TTSConfig) -> None:
    """A stream that broke, moved and was freed while its next frame was on its way."""
    case = TalkerRequest(make_prompt(config, 0), SamplingParameters(seed=3), 12)
    generator = Generator(calm, 4, MAX_LENGTH, runner=GraphRunner())
    for slot in range(3):
        generator.start(slot, case)
    generator.step(range(3))
    generator.free(0)
    generator.free(1)
    generator.model.hidden[2] = torch.nan
    generator.model.cache.values[:, 2, :, 1] = torch.nan
    broken = generator.begin([2])
    ahead = generator.begin([2])
    [frame] = broken()
    assert frame is not None and frame.finish == "error"
    generator.free(2)
    assert ahead() == [None]
    assert generator.model.cache.values[..., :MAX_LENGTH, :].isfinite().all()
    assert generator.model.cache.keys[..., :MAX_LENGTH, :].isfinite().all()
