"""The multi-stream frame model: batched = alone, cached = uncached, how streams end, and who is harmed by whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.talkers import (
    ROLE_IDS,
    TEXT_VOCAB,
    codes_of,
    frames_of,
    make_prompt,
    make_restless,
    make_talker,
    read_config,
)
from voice_clone.errors import InvalidArgument
from voice_clone.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.qwen3_tts.generator import Frame, Generator
from voice_clone.qwen3_tts.philox import uniforms
from voice_clone.qwen3_tts.prefill import build_talker_input, prefill_length
from voice_clone.qwen3_tts.prompt import Prompt
from voice_clone.qwen3_tts.sampling import SamplingParameters
from voice_clone.qwen3_tts.talker import Talker
from voice_clone.qwen3_tts.talker_request import TalkerRequest
from voice_clone.qwen3_tts.warm_up import warm_up

MAX_LENGTH = 96
GREEDY = SamplingParameters(seed=0, do_sample=False, subtalker_do_sample=False)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSConfig:
    return read_config("projected", tmp_path_factory.mktemp("checkpoint") / "folder")


@pytest.fixture(scope="module", params=["torch", "native"])
def talker(config: Qwen3TTSConfig, request: pytest.FixtureRequest) -> Talker:
    talker = make_talker(config, 0)
    if request.param == "native":
        talker.to_native("fp32")
    return talker


def solo(
    talker: Talker, config: Qwen3TTSConfig, prompt: Prompt, how: SamplingParameters, frames: int
) -> npt.NDArray[np.int32]:
    generator = Generator(talker, config, 1, MAX_LENGTH)
    generator.start(0, TalkerRequest(prompt, how, frames))
    return codes_of(generator, 0)


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
    generator = Generator(talker, config, 4, MAX_LENGTH)
    waiting = list(range(8))
    live: dict[int, int] = {}
    codes: dict[int, list[npt.NDArray[np.int32]]] = {i: [] for i in range(8)}
    step = 0
    while waiting or live:
        while waiting and len(live) < 4 and step >= waiting[0]:  # one newcomer a step at first
            slot = next(slot for slot in (2, 0, 3, 1) if slot not in live)
            live[slot] = waiting.pop(0)
            generator.start(slot, TalkerRequest(*cases[live[slot]]))
        order = list(live)  # slots in order of arrival: neither sorted nor neighbours
        for slot, frame in zip(order, generator.step(order), strict=True):
            if frame.codes is not None:
                codes[live[slot]].append(frame.codes)
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
            int(rng.integers(4, 24)),
        )
        for i in range(requests)
    ]
    alone: list[tuple[npt.NDArray[np.int32], torch.Tensor]] = []
    for case in cases:
        generator = Generator(talker, config, 8, MAX_LENGTH, deterministic=True)
        generator.start(0, TalkerRequest(*case))
        codes = [codes_in(generator.step([0])[0]) for _ in range(case[2])]
        alone.append((np.stack(codes), generator._model.hidden[0].clone()))

    generator = Generator(talker, config, 8, MAX_LENGTH, deterministic=True)
    waiting = [int(i) for i in rng.permutation(requests)]
    live: dict[int, int] = {}
    together: dict[int, list[npt.NDArray[np.int32]]] = {i: [] for i in range(requests)}
    while waiting or live:
        free = [slot for slot in range(8) if slot not in live]
        if waiting and free and rng.random() < 0.6:
            slot = int(rng.choice(free))
            live[slot] = waiting.pop()
            left = generator.start(slot, TalkerRequest(*cases[live[slot]]))
            generator.prefill(slot, left)
        chosen = [int(slot) for slot in rng.permutation(list(live)) if rng.random() < 0.9]  # some pause
        for slot, frame in zip(chosen, generator.step(chosen), strict=True):
            together[live[slot]].append(codes_in(frame))
            if frame.finish:
                assert torch.equal(generator._model.hidden[slot], alone[live[slot]][1])
                generator.free(slot)
                del live[slot]
    for i, (codes, _) in enumerate(alone):
        np.testing.assert_array_equal(np.stack(together[i]), codes)
    torch.set_num_threads(before)


def test_deterministic_is_the_same_model(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompt, how = make_prompt(config, 1, icl=True), SamplingParameters(seed=9)
    generator = Generator(talker, config, 3, MAX_LENGTH, deterministic=True)
    generator.start(1, TalkerRequest(prompt, how, 20))
    np.testing.assert_array_equal(codes_of(generator, 1), solo(talker, config, prompt, how, 20))
    room = MAX_LENGTH - prefill_length(prompt)  # the last position of a slot is not where idle rows write
    generator.start(2, TalkerRequest(prompt, how, room))
    np.testing.assert_array_equal(codes_of(generator, 2), solo(talker, config, prompt, how, room))


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_step_that_raised_may_be_tried_again(
    talker: Talker, config: Qwen3TTSConfig, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, how = [make_prompt(config, 0), make_prompt(config, 1)], SamplingParameters(seed=3)
    generator = Generator(talker, config, 2, MAX_LENGTH, deterministic)
    for slot, prompt in enumerate(prompts):
        generator.start(slot, TalkerRequest(prompt, how, 8))
    frames = []
    for number in range(8):
        with monkeypatch.context() as patch:  # fails at the last moment
            predict = talker.code_predictor.predict

            def fail(*args: Any, **kwargs: Any) -> Any:
                predict(*args, **kwargs)  # noqa: B023
                raise RuntimeError("out of memory")

            if number % 2:
                patch.setattr(talker.code_predictor, "predict", fail)
                with pytest.raises(RuntimeError, match="out of memory"):
                    generator.step([0, 1])
        frames.append([*generator.step([0]), *generator.step([1])] if number % 4 == 3 else generator.step([0, 1]))
    for slot, prompt in enumerate(prompts):
        got = [codes_in(pair[slot]) for pair in frames]
        np.testing.assert_array_equal(got, solo(talker, config, prompt, how, 8))


def test_reset_forgets_streams_in_any_state(config: Qwen3TTSConfig) -> None:
    talker = make_talker(config, 0)
    prompt, how = make_prompt(config, 5), SamplingParameters(seed=3)
    expected = solo(talker, config, prompt, how, 20)
    poison = TEXT_VOCAB - 1
    with torch.no_grad():
        talker.model.text_embedding.weight[poison] = torch.nan
    bad = Prompt(ROLE_IDS, np.full(20, poison, np.int32), prompt.speaker_embedding, non_streaming_mode=True)
    generator = Generator(talker, config, 3, MAX_LENGTH)
    generator.start(0, TalkerRequest(bad, how, 20))
    generator.prefill(0, 18)
    generator.start(1, TalkerRequest(bad, how, 20))
    generator.step([1])
    generator.start(2, TalkerRequest(prompt, how, 20))
    generator.step([2])
    generator.reset()
    assert not generator.live
    for slot in range(3):
        generator.start(slot, TalkerRequest(prompt, how, 20))
        np.testing.assert_array_equal(codes_of(generator, slot), expected)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
@pytest.mark.parametrize("deterministic", [False, True])
def test_warm_up_leaves_nothing(
    talker: Talker, config: Qwen3TTSConfig, seconds: float, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []
    generator = Generator(talker, config, 3, MAX_LENGTH, deterministic)
    step = generator.step
    monkeypatch.setattr(generator, "step", lambda slots: widths.append(len(slots)) or step(slots))
    warm_up(generator, 16, seconds)
    assert set(widths) == ({1, 2, 3} if seconds else set()) and not generator.live
    prompt, how = make_prompt(config, 1, icl=True), SamplingParameters(seed=9)
    generator.start(2, TalkerRequest(prompt, how, 10))
    np.testing.assert_array_equal(codes_of(generator, 2), solo(talker, config, prompt, how, 10))


def test_who_has_stopped_needs_no_code_predictor(config: Qwen3TTSConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    talker = make_talker(config, 3)
    make_restless(talker.codec_head, 3)
    predict = talker.code_predictor.predict

    def counted(cache: Any, hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        widths.append(hidden.shape[0])
        return predict(cache, hidden, *rest)

    monkeypatch.setattr(talker.code_predictor, "predict", counted)
    generator = Generator(talker, config, 4, MAX_LENGTH)
    for slot in range(4):
        generator.start(slot, TalkerRequest(make_prompt(config, slot), GREEDY, 30))
    live, made = [0, 1, 2, 3], 0
    while live:
        frames = generator.step(live)
        made += sum(frame.codes is not None for frame in frames)
        live = [slot for slot, frame in zip(live, frames, strict=True) if not frame.finish]
    assert sum(widths) == made and len(set(widths)) > 1


@pytest.mark.parametrize("begin", [0, 30])
@pytest.mark.parametrize("cycle", [1, 3, 8])
@pytest.mark.parametrize("limit", [None, 12])
def test_a_runaway_ends(
    config: Qwen3TTSConfig, begin: int, cycle: int, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codebook 0 is forced to go round in a cycle; it may do so until the text is used up. The others are drawn."""
    talker, prompt = make_talker(config, 0), make_prompt(config, 0)
    others = config.talker.num_code_groups - 1

    def draw(cache: Any, hidden: torch.Tensor, first: torch.Tensor, *_: Any) -> torch.Tensor:
        return torch.cat((first[:, None], torch.randint(2048, (1, others))), dim=1)

    monkeypatch.setattr(talker.code_predictor, "predict", draw)
    text = len(build_talker_input(talker, config, prompt).trailing_text)
    assert 0 < text < 30
    generator = Generator(talker, config, 1, MAX_LENGTH, runaway_frames=limit)
    generator.start(0, TalkerRequest(prompt, SamplingParameters(seed=1), 60))
    frames: list[Frame] = []
    with torch.no_grad():
        while not frames or frames[-1].finish is None:
            bias = torch.zeros(config.talker.vocab_size)
            if len(frames) >= begin:
                bias[100 + len(frames) % cycle] = 1e6
            talker.codec_head.bias = torch.nn.Parameter(bias)
            frames += generator.step([0])
    assert frames[-1].codes is not None
    ends = ("length", 60) if limit is None else ("runaway", max(begin, text) + cycle + limit)
    assert (frames[-1].finish, len(frames)) == ends


def test_any_subset_may_be_stepped(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompts = [make_prompt(config, i) for i in range(3)]
    how = SamplingParameters(seed=4)
    generator = Generator(talker, config, 3, MAX_LENGTH)
    codes: list[list[npt.NDArray[np.int32]]] = [[], [], []]
    for slot, prompt in enumerate(prompts):
        generator.start(slot, TalkerRequest(prompt, how, 9))
    rng = np.random.default_rng(0)
    while open_slots := [slot for slot in range(3) if len(codes[slot]) < 9]:
        chosen = [int(slot) for slot in rng.permutation(open_slots)[: rng.integers(1, 4)]]
        for slot, frame in zip(chosen, generator.step(chosen), strict=True):
            assert frame.codes is not None
            codes[slot].append(frame.codes)
    for slot, prompt in enumerate(prompts):
        np.testing.assert_array_equal(np.stack(codes[slot]), solo(talker, config, prompt, how, 9))
    assert generator.step([]) == []


def test_seed_decides(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompt = make_prompt(config, 0)
    first = solo(talker, config, prompt, SamplingParameters(seed=1), 8)
    np.testing.assert_array_equal(first, solo(talker, config, prompt, SamplingParameters(seed=1), 8))
    assert not np.array_equal(first, solo(talker, config, prompt, SamplingParameters(seed=2), 8))


@pytest.mark.parametrize("non_streaming", [False, True])
@pytest.mark.parametrize("icl", [False, True])
@pytest.mark.parametrize("language", [None, "german"])
def test_prefill_length(
    talker: Talker, config: Qwen3TTSConfig, icl: bool, non_streaming: bool, language: str | None
) -> None:
    for seed in range(6):
        prompt = make_prompt(config, seed, icl=icl, non_streaming=non_streaming, language=language)
        built = build_talker_input(talker, config, prompt)
        assert built.embeds.shape == (prefill_length(prompt), config.talker.hidden_size)
        # Every text token and the end mark are either in the prefill or follow.
        total = len(prompt.text_ids) + len(prompt.reference_ids) + 1
        held = 0 if non_streaming else max(0, total - 1 - len(prompt.reference_codes))
        assert len(built.trailing_text) == held


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_prefill_in_chunks_between_steps(talker: Talker, config: Qwen3TTSConfig, chunk: int) -> None:
    """A newcomer whose prompt is read between the steps of another stream; both are as if alone."""
    generator = Generator(talker, config, 2, MAX_LENGTH)
    prompts, how = [make_prompt(config, 1), make_prompt(config, 2, icl=True)], SamplingParameters(seed=8)
    generator.start(0, TalkerRequest(prompts[0], how, 60))
    left = generator.start(1, TalkerRequest(prompts[1], how, 10))
    assert left == prefill_length(prompts[1])
    beside = []
    while left:
        beside += generator.step([0])
        generator.prefill(1, min(left, chunk))
        left -= min(left, chunk)
    pairs = [generator.step([1, 0]) for _ in range(10)]
    codes = [codes_in(frame) for frame in [*beside, *(pair[1] for pair in pairs)]]
    np.testing.assert_array_equal(codes, solo(talker, config, prompts[0], how, 60)[: len(codes)])
    np.testing.assert_array_equal([codes_in(p[0]) for p in pairs], solo(talker, config, prompts[1], how, 10))


@pytest.mark.parametrize("cut", [1, 7, 12])
def test_prefill_in_chunks_equals_whole(talker: Talker, config: Qwen3TTSConfig, cut: int) -> None:
    embeds = build_talker_input(talker, config, make_prompt(config, 1, icl=True)).embeds
    cache = talker.new_cache(3, MAX_LENGTH)
    whole = talker.prefill(cache, 0, embeds)
    talker.prefill(cache, 2, embeds[:cut])
    torch.testing.assert_close(talker.prefill(cache, 2, embeds[cut:], offset=cut), whole, rtol=0, atol=1e-5)
    torch.testing.assert_close(cache.keys[:, 2], cache.keys[:, 0], rtol=0, atol=1e-5)


def test_cached_equals_uncached(talker: Talker, config: Qwen3TTSConfig) -> None:
    """Decoding position by position, in slots that are neighbours or not, equals one prefill of all."""
    embeds = build_talker_input(talker, config, make_prompt(config, 2, icl=True)).embeds
    length = len(embeds)
    for slots in ([0, 1], [3, 1]):
        cache = talker.new_cache(4, MAX_LENGTH)
        starts = [length - 5, 3]  # streams of different lengths in one batch
        for slot, start in zip(slots, starts, strict=True):
            talker.prefill(cache, slot, embeds[:start])
        for step in range(5):
            positions = [start + step for start in starts]
            hidden = talker.decode(cache, slots, positions, embeds[positions])
        for row, start in enumerate(starts):
            expected = talker.prefill(talker.new_cache(1, MAX_LENGTH), 0, embeds[: start + 5])
            torch.testing.assert_close(hidden[row], expected, rtol=0, atol=1e-5)


def test_length(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompt = make_prompt(config, 0)
    generator = Generator(talker, config, 1, MAX_LENGTH)
    for frames in (1, 2, 7):
        generator.start(0, TalkerRequest(prompt, GREEDY, frames))
        made = list(frames_of(generator, 0))
        assert [frame.finish for frame in made] == [None] * (frames - 1) + ["length"]
        assert all(frame.codes is not None and frame.codes.shape == (16,) for frame in made)


def test_stop_comes_after_two_frames_at_least(config: Qwen3TTSConfig) -> None:
    lengths = []
    for seed in range(6):
        talker = make_talker(config, seed)
        make_restless(talker.codec_head, seed)
        generator = Generator(talker, config, 1, MAX_LENGTH)
        generator.start(0, TalkerRequest(make_prompt(config, seed), GREEDY, 40))
        *frames, last = frames_of(generator, 0)
        assert last.finish == "stop" and last.codes is None
        assert all(frame.finish is None and frame.codes is not None for frame in frames)
        lengths.append(len(frames))
    assert min(lengths) == 2 and max(lengths) > 2


def test_codes_are_codes(talker: Talker, config: Qwen3TTSConfig) -> None:
    """Control tokens never become codes, not even at a temperature that makes all ids alike."""
    hot = SamplingParameters(seed=1, temperature=1e6, top_k=0, subtalker_temperature=1e6, subtalker_top_k=0)
    codes = solo(talker, config, make_prompt(config, 0), hot, 50)
    assert codes.min() >= 0 and codes.max() < 2048


def codes_in(frame: Frame) -> npt.NDArray[np.int32]:
    assert frame.codes is not None
    return frame.codes


@pytest.mark.parametrize("broken", ["from the start", "later", "freed before it shows"])
def test_a_broken_stream_harms_nobody(config: Qwen3TTSConfig, broken: str) -> None:
    """Neither the streams beside it nor the next one in its slot."""
    talker = make_talker(config, 0)
    healthy, successor, how = make_prompt(config, 0, icl=True), make_prompt(config, 5), SamplingParameters(seed=3)
    expected = [solo(talker, config, prompt, how, 20) for prompt in (successor, healthy)]
    poison = TEXT_VOCAB - 1  # no other prompt holds this token
    with torch.no_grad():
        talker.model.text_embedding.weight[poison] = torch.nan
    # "later": streamed text, the token reaches the talker after the fourth frame; else all positions of the text break.
    text = np.array([1, 2, 3, 4, poison, 5] if broken == "later" else [poison] * 20, np.int32)
    prompt = Prompt(ROLE_IDS, text, healthy.speaker_embedding, non_streaming_mode=broken != "later")
    generator = Generator(talker, config, 2, MAX_LENGTH)
    generator.start(0, TalkerRequest(prompt, how, 20))
    generator.start(1, TalkerRequest(healthy, how, 20))
    beside = []
    while broken != "freed before it shows":
        bad, good = generator.step([0, 1])
        beside.append(codes_in(good))
        if bad.finish:
            assert bad.finish == "error" and bad.codes is None
            break
        assert bad.codes is not None
    generator.free(0)
    assert len(beside) == {"from the start": 1, "later": 5, "freed before it shows": 0}[broken]

    # Behind the shorter stream's end lies what the broken one left there: it is read and masked.
    generator.start(0, TalkerRequest(successor, how, 20))
    assert prefill_length(successor) < prefill_length(prompt) + len(beside) < prefill_length(healthy)
    after = []
    while len(beside) < 20:
        first, good = generator.step([0, 1])
        after.append(codes_in(first))
        beside.append(codes_in(good))
    np.testing.assert_array_equal(np.stack(beside), expected[1])
    np.testing.assert_array_equal(np.stack(after), expected[0][: len(after)])


def test_a_frame_with_a_broken_code_is_not_given_out(config: Qwen3TTSConfig) -> None:
    """Values that cease to be finite inside the code predictor end the stream with that frame."""
    talker = make_talker(config, 0)
    prompts, how = [make_prompt(config, 0), make_prompt(config, 1)], SamplingParameters(seed=3)
    expected = [solo(talker, config, prompt, how, 8) for prompt in prompts]
    code = int(expected[0][4, 1])
    assert code not in expected[0][:4, 1] and code not in expected[1][:, 1]
    with torch.no_grad():
        talker.code_predictor.model.codec_embedding.weight[code] = torch.nan
    generator = Generator(talker, config, 2, MAX_LENGTH)
    for slot, prompt in enumerate(prompts):
        generator.start(slot, TalkerRequest(prompt, how, 8))
    frames = [generator.step([0, 1]) for _ in range(5)]
    assert [frame.finish for frame, _ in frames] == [None] * 4 + ["error"] and frames[4][0].codes is None
    generator.free(0)
    rest = [generator.step([1])[0] for _ in range(3)]
    np.testing.assert_array_equal([codes_in(frame) for _, frame in frames] + [codes_in(f) for f in rest], expected[1])


def test_draws_are_keyed_by_seed_frame_and_codebook(talker: Talker, config: Qwen3TTSConfig) -> None:
    """With all codes alike likely, the draw alone makes the code."""
    flat = SamplingParameters(
        seed=2**63 + 5, temperature=1e9, top_k=0, repetition_penalty=1.0, subtalker_temperature=1e9, subtalker_top_k=0
    )
    codes = solo(talker, config, make_prompt(config, 0), flat, 6)
    draws = uniforms([flat.seed] * 6, list(range(6)), 16)
    np.testing.assert_allclose(codes, draws * 2048, rtol=0, atol=2)


def test_what_does_not_fit_is_refused(talker: Talker, config: Qwen3TTSConfig) -> None:
    generator = Generator(talker, config, 1, MAX_LENGTH)
    prompt = make_prompt(config, 0)
    room = MAX_LENGTH - prefill_length(prompt)
    with pytest.raises(InvalidArgument, match="96"):
        generator.start(0, TalkerRequest(prompt, GREEDY, room + 1))
    with pytest.raises(InvalidArgument, match="max_frames"):
        generator.start(0, TalkerRequest(prompt, GREEDY, 0))
    generator.start(0, TalkerRequest(prompt, GREEDY, room))  # the slot is still free, and the last position is usable
    assert len(codes_of(generator, 0)) == room


def test_prompts_are_checked(talker: Talker, config: Qwen3TTSConfig) -> None:
    generator = Generator(talker, config, 1, MAX_LENGTH)
    text, embedding = np.array([1, 2], np.int32), np.zeros(config.talker.hidden_size, np.float32)
    codes, reference = np.zeros((4, 16), np.int32), np.array([1], np.int32)
    wrong: dict[str, Callable[[], Prompt]] = {
        "text_ids": lambda: Prompt(ROLE_IDS, np.array([TEXT_VOCAB], np.int32), embedding),
        "text_ids must": lambda: Prompt(ROLE_IDS, np.array([-1], np.int32), embedding),
        "speaker_embedding has 63": lambda: Prompt(ROLE_IDS, text, embedding[1:]),
        "NaN": lambda: Prompt(ROLE_IDS, text, np.full_like(embedding, np.nan)),
        "the text is empty": lambda: Prompt(ROLE_IDS, text[:0], embedding),
        "reference_codes must": lambda: Prompt(ROLE_IDS, text, embedding, reference, codes + 2048),
        "reference codes have 15": lambda: Prompt(ROLE_IDS, text, embedding, reference, codes[:, 1:]),
        "need each other": lambda: Prompt(ROLE_IDS, text, embedding, reference),
        "language_id": lambda: Prompt(ROLE_IDS, text, embedding, language_id=1),
        "INT32": lambda: Prompt(ROLE_IDS, text.astype(np.int64), embedding),
    }
    for message, make in wrong.items():
        with pytest.raises(InvalidArgument, match=message):
            generator.start(0, TalkerRequest(make(), GREEDY, 5))
    assert not generator.live


def test_memory_is_counted(talker: Talker, config: Qwen3TTSConfig) -> None:
    generator = Generator(talker, config, 3, MAX_LENGTH)
    talker_bytes = 2 * 3 * 3 * 2 * MAX_LENGTH * 16 * 4  # k and v, layers, slots, heads, positions, head dim, fp32
    predictor_bytes = 2 * 2 * 3 * 2 * 16 * 16 * 4
    assert generator.kv_bytes == talker_bytes + predictor_bytes


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
        empty = Talker(config.talker)
    empty.load_state_dict(talker.state_dict(), strict=True, assign=True)
    assert not list(empty.buffers())
    prompt = make_prompt(config, 3)
    np.testing.assert_array_equal(solo(empty, config, prompt, GREEDY, 5), solo(talker, config, prompt, GREEDY, 5))
