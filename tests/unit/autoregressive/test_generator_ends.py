"""How streams of the frame model end, and that none harms another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.support.families.lone_streams import GREEDY, MAX_LENGTH, codes_in, solo
from tests.support.families.talkers import (
    EOS,
    ROLE_IDS,
    TEXT_VOCAB,
    codes_of,
    frames_of,
    make_prompt,
    make_restless,
    make_talker,
)
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import MoreText, Pauses, TalkerRequest
from voice_clone.batching.source import Frame
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.prompt_reader import prefill_length
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.talker import Qwen3TTSTalker

Alone = Callable[..., npt.NDArray[np.int32]]
HOW = SamplingParameters(seed=3)


@pytest.fixture(scope="module")
def alone(config: Qwen3TTSConfig) -> Alone:
    """The first codes, so many, that talker 0 draws by `HOW` for the prompt of a seed; computed once."""

    @cache
    def codes(seed: int, frames: int, icl: bool = False) -> npt.NDArray[np.int32]:
        return solo(make_talker(config, 0), config, make_prompt(config, seed, icl=icl), HOW, frames)

    return codes


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_step_that_raised_may_be_tried_again(
    talker: Talker, config: Qwen3TTSConfig, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, how = [make_prompt(config, 0), make_prompt(config, 1)], SamplingParameters(seed=3)
    generator = Generator(talker, 2, MAX_LENGTH, deterministic)
    for slot, prompt in enumerate(prompts):
        generator.start(slot, TalkerRequest(prompt, how, 8))
    frames = []
    for number in range(8):
        with monkeypatch.context() as patch:  # fails at the last moment
            complete = talker.head.predictor.complete

            def fail(*args: Any, **kwargs: Any) -> Any:
                complete(*args, **kwargs)  # noqa: B023
                raise RuntimeError("out of memory")

            if number % 2:
                patch.setattr(talker.head.predictor, "complete", fail)
                with pytest.raises(RuntimeError, match="out of memory"):
                    generator.step([0, 1])
        frames.append([*generator.step([0]), *generator.step([1])] if number % 4 == 3 else generator.step([0, 1]))
    for slot, prompt in enumerate(prompts):
        got = [codes_in(pair[slot]) for pair in frames]
        np.testing.assert_array_equal(got, solo(talker, config, prompt, how, 8))


def test_reset_forgets_streams_in_any_state(config: Qwen3TTSConfig, alone: Alone) -> None:
    talker, prompt, how = make_talker(config, 0), make_prompt(config, 5), HOW
    expected = alone(5, 20)
    poison = TEXT_VOCAB - 1
    with torch.no_grad():
        talker.model.text_embedding.weight[poison] = torch.nan
    bad = Prompt(ROLE_IDS, np.full(20, poison, np.int32), prompt.speaker_embedding, non_streaming_mode=True)
    generator = Generator(talker, 3, MAX_LENGTH)
    generator.start(0, TalkerRequest(bad, how, 20))
    generator.prefill({0: 18})
    generator.start(1, TalkerRequest(bad, how, 20))
    generator.step([1])
    generator.start(2, TalkerRequest(prompt, how, 20))
    generator.step([2])
    generator.reset()
    assert not generator.live
    for slot in range(3):
        generator.start(slot, TalkerRequest(prompt, how, 20))
        np.testing.assert_array_equal(codes_of(generator, slot), expected)


def test_a_stopped_stream_needs_no_code_predictor(config: Qwen3TTSConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    talker = make_talker(config, 3)
    make_restless(talker.codec_head, 3)
    complete = talker.head.predictor.complete

    def counted(cache: Any, hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        widths.append(hidden.shape[0])
        return complete(cache, hidden, *rest)

    monkeypatch.setattr(talker.head.predictor, "complete", counted)
    generator = Generator(talker, 4, MAX_LENGTH)
    for slot in range(4):
        generator.start(slot, TalkerRequest(make_prompt(config, slot), GREEDY, 30))
    live, made = [0, 1, 2, 3], 0
    while live:
        frames = generator.step(live)
        made += sum(frame.payload is not None for frame in frames)
        live = [slot for slot, frame in zip(live, frames, strict=True) if not frame.finish]
    assert sum(widths) == made and len(set(widths)) > 1


@pytest.mark.parametrize("begin", [0, 30])
@pytest.mark.parametrize("cycle", [1, 3, 8])
@pytest.mark.parametrize("limit", [None, 12])
def test_a_runaway_ends(
    config: Qwen3TTSConfig, begin: int, cycle: int, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codebook 0 is forced to repeat a cycle; it may do so until the text is used up. The others are drawn."""
    talker, prompt = make_talker(config, 0), make_prompt(config, 0)
    others = config.talker.num_code_groups - 1

    def draw(cache: Any, hidden: torch.Tensor, first: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        return torch.cat((first[:, None], torch.randint(2048, (1, others))), dim=1), torch.ones(1, dtype=torch.bool)

    monkeypatch.setattr(talker.head.predictor, "complete", draw)
    text = len(talker.embed_prompt(prompt).trailing_text)
    assert 0 < text < 30
    generator = Generator(talker, 1, MAX_LENGTH, runaway_frames=limit)
    generator.start(0, TalkerRequest(prompt, SamplingParameters(seed=1), 60))
    frames: list[Frame] = []
    with torch.no_grad():
        while not frames or frames[-1].finish is None:
            bias = torch.zeros(config.talker.vocab_size)
            if len(frames) >= begin:
                bias[100 + len(frames) % cycle] = 1e6
            talker.codec_head.bias = torch.nn.Parameter(bias)
            frames += generator.step([0])
    assert frames[-1].payload is not None
    ends = ("length", 60) if limit is None else ("runaway", max(begin, text) + cycle + limit)
    assert (frames[-1].finish, len(frames)) == ends


def test_length(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompt = make_prompt(config, 0)
    generator = Generator(talker, 1, MAX_LENGTH)
    for frames in (1, 2, 7):
        generator.start(0, TalkerRequest(prompt, GREEDY, frames))
        made = list(frames_of(generator, 0))
        assert [frame.finish for frame in made] == [None] * (frames - 1) + ["length"]
        assert all(frame.payload is not None and frame.payload.shape == (16,) for frame in made)


def test_a_budget_that_is_used_up_is_a_missed_end(talker: Talker, config: Qwen3TTSConfig) -> None:
    generator = Generator(talker, 1, MAX_LENGTH)
    generator.start(0, TalkerRequest(make_prompt(config, 0), GREEDY, 3, budgeted=True))
    assert [frame.finish for frame in frames_of(generator, 0)] == [None, None, "budget"]


def test_stop_comes_after_two_frames_at_least(config: Qwen3TTSConfig) -> None:
    lengths = []
    for seed in range(6):
        talker = make_talker(config, seed)
        make_restless(talker.codec_head, seed)
        generator = Generator(talker, 1, MAX_LENGTH)
        generator.start(0, TalkerRequest(make_prompt(config, seed), GREEDY, 40))
        *frames, last = frames_of(generator, 0)
        assert last.finish == "stop" and last.payload is None
        assert all(frame.finish is None and frame.payload is not None for frame in frames)
        lengths.append(len(frames))
    assert min(lengths) == 2 and max(lengths) > 2


@pytest.mark.parametrize("least", [1, 2, 9])
def test_a_request_may_ask_for_more_frames_before_the_end(config: Qwen3TTSConfig, least: int) -> None:
    talker = make_talker(config, 0)
    with torch.no_grad():  # the end is always the likeliest code
        bias = torch.zeros(config.talker.vocab_size)
        bias[EOS] = 1e6
        talker.codec_head.bias = torch.nn.Parameter(bias)
    generator = Generator(talker, 1, MAX_LENGTH)
    generator.start(0, TalkerRequest(make_prompt(config, 0), GREEDY, 40, min_frames=least))
    *frames, last = frames_of(generator, 0)
    assert last.finish == "stop" and len(frames) == max(least, talker.min_frames)


@pytest.mark.parametrize("how", ["whole", "open", "closed"])
@pytest.mark.parametrize("frames", [3, 4, 9])
def test_an_end_before_all_text_is_read(config: Qwen3TTSConfig, how: str, frames: int) -> None:
    """Of five tokens the model has read one with the prompt, and one with each further frame; open texts may go on."""
    talker = make_talker(config, 0)
    with torch.no_grad():  # the end is always the likeliest code
        bias = torch.zeros(config.talker.vocab_size)
        bias[EOS] = 1e6
        talker.codec_head.bias = torch.nn.Parameter(bias)
    prompt = replace(make_prompt(config, 0), text_ids=np.arange(5, dtype=np.int32))
    text = np.arange(5, 15, dtype=np.int32) if how == "open" else prompt.text_ids[:0]
    if how != "whole":
        prompt = replace(prompt, text_open=True)
    for must_read in (True, False):
        generator = Generator(talker, 1, MAX_LENGTH)
        generator.start(0, TalkerRequest(prompt, GREEDY, 40, min_frames=frames, must_read=must_read))
        if how != "whole":
            generator.extend(0, MoreText(text, how == "closed", 40, True))
        *_, last = frames_of(generator, 0)
        left = how == "open" or frames < 5
        assert last.finish == ("text_left" if must_read and left else "stop")


@pytest.mark.parametrize("most", [0, 2])
def test_long_pauses_are_read_and_not_heard(config: Qwen3TTSConfig, most: int, alone: Alone) -> None:
    """The frames that are heard are those of a stream that hears all, without the rest of each pause."""
    talker, prompt, codes = make_talker(config, 0), make_prompt(config, 0), alone(0, 40)
    silent = frozenset(int(code) for code in codes[[*range(5, 10), 20, 21, *range(36, 40)], 0])
    heard, pause = [], 0
    for frame in codes:
        pause = pause + 1 if frame[0] in silent else 0
        heard.append(pause <= most)
    assert 0 < sum(heard) < 40 and not heard[-1]
    generator = Generator(talker, 1, MAX_LENGTH)
    generator.start(0, TalkerRequest(prompt, HOW, 40, pauses=Pauses(silent, most)))
    frames = list(frames_of(generator, 0))
    assert [frame.payload is not None for frame in frames] == heard
    assert [frame.finish for frame in frames] == [None] * 39 + ["length"]
    made = [frame.payload for frame in frames if frame.payload is not None]
    np.testing.assert_array_equal(made, codes[heard])


def test_an_endless_stream_has_all_its_frames(config: Qwen3TTSConfig) -> None:
    """Neither the end of speech nor a repetition ends it."""
    talker, seed = make_talker(config, 0), 0
    make_restless(talker.codec_head, seed)
    generator = Generator(talker, 2, MAX_LENGTH, runaway_frames=1)
    prompt = make_prompt(config, seed)
    generator.start(0, TalkerRequest(prompt, GREEDY, 40))
    assert len(list(frames_of(generator, 0))) < 40
    generator.start(1, TalkerRequest(prompt, GREEDY, 40, endless=True))
    frames = list(frames_of(generator, 1))
    assert [frame.finish for frame in frames] == [None] * 39 + ["length"]
    assert all(frame.payload is not None for frame in frames)


def test_a_warm_up_takes_a_talker_that_ends_at_once(config: Qwen3TTSConfig) -> None:
    talker = make_talker(config, 0)
    with torch.no_grad():
        bias = torch.zeros(config.talker.vocab_size)
        bias[EOS] = 1e6
        talker.codec_head.bias = torch.nn.Parameter(bias)
    generator = Generator(talker, 3, MAX_LENGTH)
    generator.warm_up(Qwen3TTSTalker(generator, config, cast(Any, None)).example, 16, 60.0)
    assert not generator.live


@pytest.mark.parametrize("broken", ["from the start", "later", "freed before it shows"])
def test_a_broken_stream_harms_no_other(config: Qwen3TTSConfig, broken: str, alone: Alone) -> None:
    """Neither the streams beside it nor the next one in its slot."""
    talker, how = make_talker(config, 0), HOW
    healthy, successor = make_prompt(config, 0, icl=True), make_prompt(config, 5)
    expected = [alone(5, 20), alone(0, 20, icl=True)]
    poison = TEXT_VOCAB - 1  # no other prompt holds this token
    with torch.no_grad():
        talker.model.text_embedding.weight[poison] = torch.nan
    # "later": streamed text, the token reaches the talker after the fourth frame; else all positions of the text break.
    text = np.array([1, 2, 3, 4, poison, 5] if broken == "later" else [poison] * 20, np.int32)
    prompt = Prompt(ROLE_IDS, text, healthy.speaker_embedding, non_streaming_mode=broken != "later")
    generator = Generator(talker, 2, MAX_LENGTH)
    generator.start(0, TalkerRequest(prompt, how, 20))
    generator.start(1, TalkerRequest(healthy, how, 20))
    beside = []
    while broken != "freed before it shows":
        bad, good = generator.step([0, 1])
        beside.append(codes_in(good))
        if bad.finish:
            assert bad.finish == "error" and bad.payload is None
            break
        assert bad.payload is not None
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


def test_a_frame_with_a_broken_code_is_not_given_out(config: Qwen3TTSConfig, alone: Alone) -> None:
    """Values that cease to be finite inside the code predictor end the stream with that frame."""
    talker = make_talker(config, 0)
    prompts, how = [make_prompt(config, 0), make_prompt(config, 1)], HOW
    expected = [alone(0, 8), alone(1, 8)]
    code = int(expected[0][4, 1])
    assert code not in expected[0][:4, 1] and code not in expected[1][:, 1]
    with torch.no_grad():
        talker.code_predictor.model.codec_embedding.weight[code] = torch.nan
    generator = Generator(talker, 2, MAX_LENGTH)
    for slot, prompt in enumerate(prompts):
        generator.start(slot, TalkerRequest(prompt, how, 8))
    frames = [generator.step([0, 1]) for _ in range(5)]
    assert [frame.finish for frame, _ in frames] == [None] * 4 + ["error"] and frames[4][0].payload is None
    generator.free(0)
    rest = [generator.step([1])[0] for _ in range(3)]
    np.testing.assert_array_equal([codes_in(frame) for _, frame in frames] + [codes_in(f) for f in rest], expected[1])


@pytest.mark.parametrize(("first", "after", "heard"), [(10, 3, 13), (10, 5, 15), (10, 0, 10), (10, 1, 11), (3, 3, 24)])
def test_frames_after_the_end_are_heard(
    talker: Talker, config: Qwen3TTSConfig, first: int, after: int, heard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model says once that speech ends, with frame `first`; before frame 6 that means nothing."""
    made, calls = talker.head.make, iter(range(100))

    def make(memory: Any, hidden: Any, batch: Any, variant: Any) -> Any:
        frames, ends = made(memory, hidden, batch, variant), next(calls) == first
        return frames._replace(ended=(frames.ended & False) | (batch.table.may_stop & ends))

    monkeypatch.setattr(talker.head, "make", make)
    generator = Generator(talker, 1, MAX_LENGTH)
    request = TalkerRequest(make_prompt(config, 0), HOW, 24, budgeted=True, min_frames=6, frames_after_end=after)
    generator.start(0, request)
    frames = list(frames_of(generator, 0))
    assert sum(frame.payload is not None for frame in frames) == heard
    assert frames[-1].finish == ("budget" if heard == 24 else "stop")
