"""The multi-stream frame model: batched = alone, in any company and order, and in every precision."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.support.families.lone_streams import GREEDY, MAX_LENGTH, codes_in, solo
from tests.support.families.talkers import codes_of, make_prompt, make_talker
from voice_clone.array_kinds import Numbers, copied
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.philox import uniforms
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.prompt_reader import prefill_length
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.talker import Qwen3TTSTalker


def test_batched_equals_alone(talker: Talker, config: Qwen3TTSConfig) -> None:
    """Eight streams of all layouts and parameters share four slots, joining and leaving at different steps."""
    cases = [
        (
            make_prompt(config, i, icl=i % 2 == 1, non_streaming=i % 4 > 1, language=(None, "english")[i % 3 == 0]),
            SamplingParameters(
                seed=1000 + i,
                do_sample=i != 3,
                temperature=0.5 + 0.2 * i,
                top_k=(50, 0, 5)[i % 3],
                top_p=(1.0, 0.8)[i % 2],
                repetition_penalty=1 + 0.1 * i,
                subtalker_do_sample=i != 4,
                subtalker_top_k=(0, 20)[i % 2],
                subtalker_top_p=(1.0, 0.9)[i % 2],
            ),
            6 + 3 * i,
        )
        for i in range(8)
    ]
    generator = Generator(talker, 4, MAX_LENGTH)
    waiting = list(range(8))
    live: dict[int, int] = {}
    codes: dict[int, list[npt.NDArray[np.int32]]] = {i: [] for i in range(8)}
    step = 0
    while waiting or live:
        while waiting and len(live) < 4 and step >= waiting[0]:  # one new stream a step at first
            slot = next(slot for slot in (2, 0, 3, 1) if slot not in live)
            live[slot] = waiting.pop(0)
            generator.start(slot, TalkerRequest(*cases[live[slot]]))
        order = list(live)  # slots in order of arrival: neither sorted nor neighbours
        for slot, frame in zip(order, generator.step(order), strict=True):
            if frame.payload is not None:
                codes[live[slot]].append(frame.payload)
            if frame.finish:
                generator.free(slot)
                del live[slot]
        step += 1
    for i, case in enumerate(cases):
        expected = solo(talker, config, *case)
        assert len(expected) == case[2] and expected.dtype == np.int32
        np.testing.assert_array_equal(np.stack(codes[i]), expected)


@pytest.mark.parametrize(("threads", "requests"), [(1, 10), (2, 4)])
def test_deterministic_alone_and_in_any_company(
    talker: Talker, config: Qwen3TTSConfig, threads: int, requests: int
) -> None:
    """Requests join 8 slots at random. Codes are equal, and so is every bit of the state that they come from."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    rng = np.random.default_rng(threads)
    cases = [
        (
            make_prompt(config, i, icl=i % 2 == 1, non_streaming=i % 4 > 1, language=(None, "english")[i % 3 == 0]),
            SamplingParameters(
                seed=1000 + i,
                temperature=0.5 + 0.1 * i,
                top_k=(50, 0, 5)[i % 3],
                top_p=(1.0, 0.8)[i % 2],
                do_sample=i != 3,
                subtalker_do_sample=i != 4,
            ),
            int(rng.integers(4, 12)),
        )
        for i in range(requests)
    ]
    alone: list[tuple[npt.NDArray[np.int32], Numbers]] = []
    for case in cases:
        generator = Generator(talker, 8, MAX_LENGTH, deterministic=True)
        generator.start(0, TalkerRequest(*case))
        codes = [codes_in(generator.step([0])[0]) for _ in range(case[2])]
        alone.append((np.stack(codes), copied(generator.model.hidden[0])))

    generator = Generator(talker, 8, MAX_LENGTH, deterministic=True)
    waiting = [int(i) for i in rng.permutation(requests)]
    live: dict[int, int] = {}
    together: dict[int, list[npt.NDArray[np.int32]]] = {i: [] for i in range(requests)}
    while waiting or live:
        free = [slot for slot in range(8) if slot not in live]
        if waiting and free and rng.random() < 0.6:
            slot = int(rng.choice(free))
            live[slot] = waiting.pop()
            left = generator.start(slot, TalkerRequest(*cases[live[slot]]))
            generator.prefill({slot: left})
        chosen = [int(slot) for slot in rng.permutation(list(live)) if rng.random() < 0.9]  # some pause
        for slot, frame in zip(chosen, generator.step(chosen), strict=True):
            together[live[slot]].append(codes_in(frame))
            if frame.finish:
                np.testing.assert_array_equal(generator.model.hidden[slot], alone[live[slot]][1])
                generator.free(slot)
                del live[slot]
    for i, (codes, _) in enumerate(alone):
        np.testing.assert_array_equal(np.stack(together[i]), codes)
    torch.set_num_threads(before)


def test_deterministic_is_the_same_model(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompt, how, frames = make_prompt(config, 1, icl=True), SamplingParameters(seed=9), 20
    generator = Generator(talker, 3, prefill_length(prompt) + frames, deterministic=True)
    expected = solo(talker, config, prompt, how, frames)
    for slot in (1, 2):  # to the last position of a slot, which is not where idle rows write
        generator.start(slot, TalkerRequest(prompt, how, frames))
        np.testing.assert_array_equal(codes_of(generator, slot), expected)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
@pytest.mark.parametrize("deterministic", [False, True])
def test_warm_up_leaves_nothing(
    talker: Talker, config: Qwen3TTSConfig, seconds: float, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []
    generator = Generator(talker, 3, MAX_LENGTH, deterministic)
    step = generator.step
    monkeypatch.setattr(generator, "step", lambda slots: widths.append(len(slots)) or step(slots))
    generator.warm_up(Qwen3TTSTalker(generator, config, cast(Any, None)).example, 16, seconds)
    ran = {1} if talker.stack.repeatable else {1, 2, 3}
    assert set(widths) == (ran if seconds else set()) and not generator.live
    prompt, how = make_prompt(config, 1, icl=True), SamplingParameters(seed=9)
    generator.start(2, TalkerRequest(prompt, how, 10))
    np.testing.assert_array_equal(codes_of(generator, 2), solo(talker, config, prompt, how, 10))


def test_any_subset_may_be_stepped(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompts = [make_prompt(config, i) for i in range(3)]
    how = SamplingParameters(seed=4)
    generator = Generator(talker, 3, MAX_LENGTH)
    codes: list[list[npt.NDArray[np.int32]]] = [[], [], []]
    for slot, prompt in enumerate(prompts):
        generator.start(slot, TalkerRequest(prompt, how, 9))
    rng = np.random.default_rng(0)
    while open_slots := [slot for slot in range(3) if len(codes[slot]) < 9]:
        chosen = [int(slot) for slot in rng.permutation(open_slots)[: rng.integers(1, 4)]]
        for slot, frame in zip(chosen, generator.step(chosen), strict=True):
            assert frame.payload is not None
            codes[slot].append(frame.payload)
    for slot, prompt in enumerate(prompts):
        np.testing.assert_array_equal(np.stack(codes[slot]), solo(talker, config, prompt, how, 9))
    assert generator.step([]) == []


def test_seed_decides(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompt = make_prompt(config, 0)
    first = solo(talker, config, prompt, SamplingParameters(seed=1), 8)
    np.testing.assert_array_equal(first, solo(talker, config, prompt, SamplingParameters(seed=1), 8))
    assert not np.array_equal(first, solo(talker, config, prompt, SamplingParameters(seed=2), 8))


def test_codes_are_codes(talker: Talker, config: Qwen3TTSConfig) -> None:
    """Control tokens never become codes, not even at a temperature that makes all ids alike."""
    hot = SamplingParameters(seed=1, temperature=1e6, top_k=0, subtalker_temperature=1e6, subtalker_top_k=0)
    codes = solo(talker, config, make_prompt(config, 0), hot, 50)
    assert codes.min() >= 0 and codes.max() < 2048


def test_draws_are_keyed_by_seed_frame_and_codebook(talker: Talker, config: Qwen3TTSConfig) -> None:
    """With all codes alike likely, the draw alone makes the code."""
    flat = SamplingParameters(
        seed=2**63 + 5, temperature=1e9, top_k=0, repetition_penalty=1.0, subtalker_temperature=1e9, subtalker_top_k=0
    )
    codes = solo(talker, config, make_prompt(config, 0), flat, 6)
    draws = uniforms([flat.seed] * 6, list(range(6)), 16)
    np.testing.assert_allclose(codes, draws * 2048, rtol=0, atol=2)


def test_memory_is_counted(talker: Talker, config: Qwen3TTSConfig) -> None:
    generator = Generator(talker, 3, MAX_LENGTH)
    talker_bytes = 2 * 3 * 3 * 2 * MAX_LENGTH * 16 * 4  # k and v, layers, slots, heads, positions, head dim, fp32
    predictor_bytes = 2 * 2 * 3 * 2 * 16 * 16 * 4
    assert generator.memory_bytes == talker_bytes + predictor_bytes


def test_half_precision_with_a_table_of_another_dtype(config: Qwen3TTSConfig) -> None:
    """bf16 throughout, and fp32 networks over the bf16 text table that the checkpoint maps."""
    prompt = make_prompt(config, 0, icl=True)
    half = make_talker(config, 0).bfloat16()
    codes = solo(half, config, prompt, SamplingParameters(seed=0), 10)
    assert codes.shape == (10, 16) and len(np.unique(codes)) > 50

    mixed, rounded = make_talker(config, 0), make_talker(config, 0)
    table = mixed.model.text_embedding.weight.detach().bfloat16()
    mixed.model.text_embedding.weight = torch.nn.Parameter(table)
    rounded.model.text_embedding.weight = torch.nn.Parameter(table.float())
    expected = solo(rounded, config, prompt, GREEDY, 10)
    np.testing.assert_array_equal(solo(mixed, config, prompt, GREEDY, 10), expected)


def test_loads_strictly_from_the_meta_device(config: Qwen3TTSConfig) -> None:
    talker = make_talker(config, 0)
    with torch.device("meta"):
        empty = Talker(config)
    empty.load_state_dict(talker.state_dict(), strict=True, assign=True)
    assert not list(empty.buffers())
    prompt = make_prompt(config, 3)
    np.testing.assert_array_equal(solo(empty, config, prompt, GREEDY, 5), solo(talker, config, prompt, GREEDY, 5))
