"""Steps of fixed shapes: the same codes as steps that follow the streams, all recorded beforehand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.support.families.graph_safety import Recorder
from tests.support.families.talkers import codes_of, make_prompt, make_restless, make_talker
from voice_clone.autoregressive import static_step
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.static_step import StaticStep
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.batching.source import Frame
from voice_clone.errors import Unsupported
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.talker import Qwen3TTSTalker
from voice_clone.gpu import start_thread
from voice_clone.layers.graphs import GraphRunner, Step

pytestmark = pytest.mark.thorough

MAX_LENGTH = 96
PROMPTS = 2 * 3 * 4  # steps that read prompts: of 1 and more streams; of 32, 64, 96 positions; in lengths of 16 to 96
GREEDY = SamplingParameters(seed=0, do_sample=False, subtalker_do_sample=False)


@pytest.fixture(scope="module")
def talker(config: Qwen3TTSConfig) -> Talker:
    return make_talker(config, 0)


@pytest.fixture(autouse=True)
def short_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of a test then pass several boundaries between graphs: 16, 24, 32, 48 and 64 positions."""
    monkeypatch.setattr(static_step, "LEAST_LENGTH", 16)


def serve(generator: Generator, cases: list[TalkerRequest], seed: int) -> list[npt.NDArray[np.int32]]:
    """All cases' codes; they join whatever slot is free at random times, some pause, the finished leave."""
    rng = np.random.default_rng(seed)
    waiting, live = list(range(len(cases))), dict[int, int]()
    codes: list[list[npt.NDArray[np.int32]]] = [[] for _ in cases]
    while waiting or live:
        free = [slot for slot in range(generator.slots) if slot not in live]
        if waiting and free and rng.random() < 0.7:
            slot = int(rng.choice(free))
            live[slot] = waiting.pop(0)
            generator.start(slot, cases[live[slot]])
        chosen = [int(slot) for slot in rng.permutation(list(live)) if rng.random() < 0.8]
        for slot, frame in zip(chosen, generator.step(chosen), strict=True):
            if frame.payload is not None:
                codes[live[slot]].append(frame.payload)
            if frame.finish:
                generator.free(slot)
                del live[slot]
    return [np.stack(rows) if rows else np.zeros((0, 16), np.int32) for rows in codes]


def mixed(config: Qwen3TTSConfig, count: int) -> list[TalkerRequest]:
    """Streams of all layouts and all kinds of draws; some pass the longest boundary."""
    return [
        TalkerRequest(
            make_prompt(config, i, icl=i % 2 == 1, non_streaming=i % 4 > 1),
            SamplingParameters(
                seed=1000 + i,
                do_sample=i % 5 != 3,
                temperature=0.5 + 0.2 * i,
                top_k=(50, 0, 5, 100)[i % 4],
                top_p=(1.0, 1.0, 0.8)[i % 3],
                repetition_penalty=1 + 0.1 * i,
                subtalker_do_sample=i % 5 != 3,
                subtalker_top_k=(0, 20)[i % 2],
                subtalker_top_p=(1.0, 0.9)[i % 2],
            ),
            3 + 9 * (i % 5 // 2),
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def expected(talker: Talker, config: Qwen3TTSConfig) -> list[npt.NDArray[np.int32]]:
    """The codes of the streams of `mixed`, each alone, in steps of the streams' own shapes."""
    dynamic, codes = Generator(talker, 1, MAX_LENGTH), []
    for case in mixed(config, 8):
        dynamic.start(0, case)
        codes.append(codes_of(dynamic, 0))
        assert len(codes[-1]) == case.max_frames
    return codes


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("capture", [None, Recorder()])
def test_static_equals_dynamic(
    talker: Talker,
    config: Qwen3TTSConfig,
    expected: list[npt.NDArray[np.int32]],
    deterministic: bool,
    capture: Recorder | None,
) -> None:
    static = Generator(talker, 5, MAX_LENGTH, deterministic, runner=GraphRunner(capture))
    for got, codes in zip(serve(static, mixed(config, 8), 0), expected, strict=True):
        np.testing.assert_array_equal(got, codes)
    if capture:
        assert sum(capture.replays) > len(capture.replays) > 2


def test_greedy_and_the_longest_stream(talker: Talker, config: Qwen3TTSConfig) -> None:
    """One stream alone up to the last position of its slot."""
    prompt = make_prompt(config, 3)
    static = Generator(talker, 2, MAX_LENGTH, runner=GraphRunner())
    room = MAX_LENGTH - static.start(1, TalkerRequest(prompt, GREEDY, 10))
    codes_of(static, 1)
    static.start(1, TalkerRequest(prompt, GREEDY, room))
    dynamic = Generator(talker, 1, MAX_LENGTH)
    dynamic.start(0, TalkerRequest(prompt, GREEDY, room))
    codes = codes_of(static, 1)
    assert len(codes) == room
    np.testing.assert_array_equal(codes, codes_of(dynamic, 0))


def test_streams_that_stop(config: Qwen3TTSConfig) -> None:
    talker = make_talker(config, 3)
    make_restless(talker.codec_head, 3)
    cases = [TalkerRequest(make_prompt(config, i), SamplingParameters(seed=i), 40) for i in range(8)]
    got = serve(Generator(talker, 4, MAX_LENGTH, runner=GraphRunner()), cases, 1)
    dynamic = Generator(talker, 1, MAX_LENGTH)
    for case, codes in zip(cases, got, strict=True):
        dynamic.start(0, case)
        np.testing.assert_array_equal(codes, codes_of(dynamic, 0))
    assert min(map(len, got)) == 2


def test_a_broken_stream_harms_no_other(config: Qwen3TTSConfig) -> None:
    """NaN in one slot: its stream ends, its neighbour goes on, and the slot, empty for a while, serves again."""
    talker = make_talker(config, 0)
    case = TalkerRequest(make_prompt(config, 0), SamplingParameters(seed=3), 8)
    generator = Generator(talker, 1, MAX_LENGTH)
    generator.start(0, case)
    expected = codes_of(generator, 0)
    static = Generator(talker, 2, MAX_LENGTH, runner=GraphRunner())
    for slot in (0, 1):
        static.start(slot, case)
    frames = [static.step([0, 1])]
    static.model.hidden[0] = torch.nan
    static.model.cache.keys[:, 0, :, 2] = torch.nan
    frames += [static.step([0, 1])]
    assert frames[1][0].finish == "error"
    static.free(0)
    frames += [[*static.step([1]), *static.step([1])] for _ in range(2)]
    static.start(0, case)
    again = [static.step([0, 1]) for _ in range(2)] + [static.step([0]) for _ in range(6)]
    np.testing.assert_array_equal([taken(pair[0]) for pair in again], expected)
    rest = [frames[0][1], frames[1][1], *frames[2], *frames[3], *(pair[1] for pair in again[:2])]
    np.testing.assert_array_equal([taken(frame) for frame in rest], expected)


def taken(frame: Frame) -> npt.NDArray[np.int32]:
    assert frame.payload is not None
    return frame.payload


def test_a_step_that_raised_may_be_tried_again(
    talker: Talker, config: Qwen3TTSConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = TalkerRequest(make_prompt(config, 0), SamplingParameters(seed=3), 6)
    static = Generator(talker, 1, MAX_LENGTH, runner=GraphRunner())
    dynamic = Generator(talker, 1, MAX_LENGTH)
    for generator in (static, dynamic):
        generator.start(0, case)
    complete = talker.head.predictor.complete

    def fail(*args: Any) -> Any:
        complete(*args)
        raise RuntimeError("out of memory")

    codes = []
    for _ in range(6):
        with monkeypatch.context() as patch:
            patch.setattr(talker.head.predictor, "complete", fail)
            with pytest.raises(RuntimeError, match="out of memory"):
                static.step([0])
        codes.append(taken(static.step([0])[0]))
    np.testing.assert_array_equal(codes, codes_of(dynamic, 0))


def test_all_shapes_are_recorded_beforehand(talker: Talker, config: Qwen3TTSConfig) -> None:
    capture = Recorder()
    runner = GraphRunner(capture)
    generator = Generator(talker, 5, MAX_LENGTH, runner=runner)
    generator.warm_up(Qwen3TTSTalker(generator, config, cast(Any, None)).example, 16, 60.0)
    batches, lengths, draws = 4, 6, 4  # 1, 2, 4, 5; 16, 24, 32, 48, 64, 96
    assert runner.recorded == len(capture.replays) == batches * (lengths + draws) + PROMPTS
    generator.prepare()
    serve(generator, mixed(config, 6), 2)
    assert runner.recorded == len(capture.replays)


def test_frames_read_few_positions_in_vain(talker: Talker, config: Qwen3TTSConfig) -> None:
    """A stream reads no more than half as many again as it has; the shapes are few."""
    generator = Generator(talker, 1, 4096, runner=GraphRunner())
    assert isinstance(generator._step, StaticStep)
    lengths = generator._step._lengths
    assert len(lengths) == 1 + 2 * 8 and lengths[-5:] == (1024, 1536, 2048, 3072, 4096)
    assert all(longer <= 1.5 * shorter for shorter, longer in pairwise(lengths))


def test_recording_moves_no_stream(talker: Talker, config: Qwen3TTSConfig) -> None:
    generator = Generator(talker, 3, MAX_LENGTH, runner=GraphRunner(Recorder()))
    memory = [generator.model.memory.used, generator.model.hidden, generator.model.cache.keys[..., :MAX_LENGTH, :]]
    generator.prepare()
    assert not any(tensor.any() for tensor in memory)


def test_a_step_that_cannot_be_recorded_fails_the_load(
    talker: Talker, config: Qwen3TTSConfig, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = []

    def capture(step: Step) -> Step:
        if len(recorded) == 4:
            raise RuntimeError("operation not permitted when stream is capturing")
        recorded.append(step)
        return step

    generator = Generator(talker, 5, MAX_LENGTH, runner=GraphRunner(capture))
    example = Qwen3TTSTalker(generator, config, cast(Any, None)).example
    with pytest.raises(Unsupported, match="does not record CUDA graphs") as caught:
        start_thread("engine", lambda: None, lambda: void(generator.warm_up(example, 16, 60.0)))
    assert "not permitted" not in str(caught.value) and "not permitted when stream is capturing" in caplog.text


def void(_: object) -> None:
    """For functions whose result is not used."""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_graphs_equal_eager_on_a_gpu(talker: Talker, config: Qwen3TTSConfig) -> None:
    on_gpu = make_talker(config, 0).cuda()
    runner = GraphRunner.on(on_gpu.stack.like.device)
    graphs = Generator(on_gpu, 5, MAX_LENGTH, runner=runner)
    graphs.prepare()
    cases = mixed(config, 6)
    got = serve(graphs, cases, 0)
    assert runner.recorded == 4 * (6 + 4) + PROMPTS
    eager = Generator(on_gpu, 1, MAX_LENGTH)
    for case, codes in zip(cases, got, strict=True):
        eager.start(0, case)
        np.testing.assert_array_equal(codes, codes_of(eager, 0))
