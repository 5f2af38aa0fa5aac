"""Prompts in steps of fixed shapes: several new streams at once, each as if it were alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.support.families.graph_safety import Recorder
from tests.support.families.talkers import TEXT_VOCAB, codes_of, make_prompt, make_talker, read_config
from voice_clone.autoregressive import static_step
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.prompt_reader import prefill_length, voice_length
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.layers.graphs import GraphRunner
from voice_clone.lru_cache import Origin

pytestmark = pytest.mark.thorough

MAX_LENGTH, FRAMES, CHUNK = 96, 4, 24
HOW = SamplingParameters(seed=7)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSConfig:
    return read_config("equal", tmp_path_factory.mktemp("checkpoint") / "folder")


@pytest.fixture(scope="module")
def talker(config: Qwen3TTSConfig) -> Talker:
    return make_talker(config, 0)


@pytest.fixture(scope="module")
def prompts(config: Qwen3TTSConfig) -> list[Prompt]:
    return [make_prompt(config, seed, icl=seed != 2, non_streaming=seed == 3) for seed in range(6)]


@pytest.fixture(scope="module")
def alone(talker: Talker, prompts: list[Prompt]) -> list[npt.NDArray[np.int32]]:
    """Each prompt's codes, read as a whole, in shapes of its own."""
    generator, codes = Generator(talker, 1, MAX_LENGTH), []
    for prompt in prompts:
        generator.start(0, TalkerRequest(prompt, HOW, FRAMES))
        codes.append(codes_of(generator, 0))
    return codes


@pytest.fixture(autouse=True)
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_step, "LEAST_LENGTH", 16)
    monkeypatch.setattr(static_step, "LEAST_POSITIONS", 6)


def static(talker: Any, runner: GraphRunner | None = None, **options: Any) -> Generator[Prompt]:
    return Generator(talker, 6, MAX_LENGTH, runner=runner or GraphRunner(), prefill_chunk=CHUNK, **options)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("piece", [5, CHUNK, 80])
def test_new_streams_are_read_together(
    talker: Talker,
    config: Qwen3TTSConfig,
    prompts: list[Prompt],
    alone: list[npt.NDArray[np.int32]],
    deterministic: bool,
    piece: int,
) -> None:
    """More streams than a step takes, in pieces that fit it or not, in any order of slots."""
    generator = static(talker, deterministic=deterministic)
    slots = [3, 0, 5, 1, 4, 2]
    left = {
        slot: generator.start(slot, TalkerRequest(prompt, HOW, FRAMES))
        for slot, prompt in zip(slots, prompts, strict=True)
    }
    while left:
        counts = {slot: min(count, piece) for slot, count in left.items()}
        generator.prefill(counts)
        left = {slot: count - counts[slot] for slot, count in left.items() if count > counts[slot]}
    for slot, codes in zip(slots, alone, strict=True):
        np.testing.assert_array_equal(codes_of(generator, slot), codes)


def test_one_step_for_several(talker: Talker, prompts: list[Prompt]) -> None:
    capture = Recorder()
    generator = static(talker, GraphRunner(capture))
    for slot in range(4):
        generator.start(slot, TalkerRequest(prompts[slot], HOW, FRAMES))
    generator.prefill(dict.fromkeys(range(4), 6))
    assert sum(capture.replays) == 1
    generator.prefill({0: 1, 2: 1})
    assert sum(capture.replays) == 2
    generator.prefill({0: 5, 1: CHUNK - 5 + 1})  # one position too many for a step
    assert sum(capture.replays) == 4


def test_a_broken_prompt_harms_no_neighbour(
    config: Qwen3TTSConfig, prompts: list[Prompt], alone: list[npt.NDArray[np.int32]]
) -> None:
    """Values that are not finite, read in one step with others; the slot serves again."""
    talker = make_talker(config, 0)
    with torch.no_grad():
        talker.model.text_embedding.weight[TEXT_VOCAB - 1] = torch.nan
    bad = replace(prompts[2], text_ids=np.full(9, TEXT_VOCAB - 1, np.int32), non_streaming_mode=True)
    generator = static(talker)
    for slot, prompt in enumerate([prompts[0], bad, prompts[1]]):
        generator.start(slot, TalkerRequest(prompt, HOW, FRAMES))
    generator.prefill({0: 8, 1: 8, 2: 8})
    generator.prefill({1: prefill_length(bad) - 8})
    assert not generator.model.hidden[1].isfinite().any()
    assert generator.step([1])[0].finish == "error"
    generator.free(1)
    for slot, codes in ((0, alone[0]), (2, alone[1])):
        np.testing.assert_array_equal(codes_of(generator, slot), codes)
    generator.start(1, TalkerRequest(prompts[3], HOW, FRAMES))
    np.testing.assert_array_equal(codes_of(generator, 1), alone[3])


def test_a_piece_that_raised_may_be_tried_again(
    talker: Talker, prompts: list[Prompt], alone: list[npt.NDArray[np.int32]], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = static(talker)
    generator.start(1, TalkerRequest(prompts[0], HOW, FRAMES))
    whole = talker.stack.prefill_together

    def fail(*args: Any) -> Any:
        whole(*args)
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(talker.stack, "prefill_together", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            generator.prefill({1: 7})
    generator.prefill({1: 7})
    np.testing.assert_array_equal(codes_of(generator, 1), alone[0])


def test_prefixes_that_cannot_be_kept_move_no_stream(
    talker: Talker,
    prompts: list[Prompt],
    alone: list[npt.NDArray[np.int32]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The engine's thread reads two prompts in one piece, and there is no memory left for copies of their prefixes."""
    generator = static(talker, prefix_bytes=1 << 20)
    unread = {slot: generator.start(slot, TalkerRequest(prompts[slot], HOW, FRAMES)) for slot in (0, 1)}

    def full(*args: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(generator.prefixes, "_positions", full)
    generator.prefill(unread)
    assert generator.prefixes.nbytes == 0 and len(caplog.records) == 1
    for slot in unread:
        np.testing.assert_array_equal(codes_of(generator, slot), alone[slot])


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_prefix_of_a_voice_is_kept(talker: Talker, prompts: list[Prompt], deterministic: bool) -> None:
    """The second speech reads its text alone. In one shape no bit shows it."""
    first = prompts[0]
    again = replace(first, text_ids=prompts[1].text_ids)
    keeping, forgetful = (static(talker, deterministic=deterministic, prefix_bytes=size) for size in (1 << 20, 0))
    assert keeping.restore([], 1.0) == 0
    keeping.start(0, TalkerRequest(first, HOW, FRAMES))
    keeping.prefill({0: prefill_length(first)})
    states, codes = [], []
    for generator, known in ((keeping, voice_length(first)), (forgetful, 0)):
        left = generator.start(1, TalkerRequest(again, HOW, FRAMES))
        assert left == prefill_length(again) - known
        generator.prefill({1: left})
        states.append(generator.model.hidden[1].clone())
        codes.append(codes_of(generator, 1))
    np.testing.assert_array_equal(*codes)
    if deterministic:
        assert torch.equal(*states)
    else:
        torch.testing.assert_close(*states, rtol=0, atol=1e-5)


@pytest.mark.parametrize("deterministic", [False, True])
def test_several_voices_are_restored(
    talker: Talker, prompts: list[Prompt], alone: list[npt.NDArray[np.int32]], deterministic: bool
) -> None:
    """All are read in slot 0, one after the other; then each voice has its own prefix, in any slot."""
    generator = static(talker, deterministic=deterministic, prefix_bytes=1 << 20)
    assert generator.restore([(Origin.unknown(), prompt) for prompt in prompts[:4]], 60.0) == 4
    assert generator.live == frozenset() and not generator.model.cache.keys.any()
    slots, unread = {5 - number: number for number in range(4)}, {}
    for slot, number in slots.items():
        unread[slot] = generator.start(slot, TalkerRequest(prompts[number], HOW, FRAMES))
        assert unread[slot] == prefill_length(prompts[number]) - voice_length(prompts[number])
    generator.prefill(unread)
    frames = [generator.step(list(slots)) for _ in range(FRAMES)]
    for place, number in enumerate(slots.values()):
        np.testing.assert_array_equal([step[place].payload for step in frames], alone[number])
    for number in (4, 5):  # what was not restored is read
        generator.free(number)
        assert generator.start(number, TalkerRequest(prompts[number], HOW, FRAMES)) == prefill_length(prompts[number])
