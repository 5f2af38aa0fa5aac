"""Sampling: the generator's numbers, the filters, the draws, and that rows never touch one another."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.families.talkers import make_sampler, make_talker, read_config
from voice_clone.autoregressive.code_head import CodeVariant
from voice_clone.autoregressive.frame_head import Row
from voice_clone.autoregressive.philox import Draws, philox4x32, uniforms
from voice_clone.autoregressive.samplers import Sampler, finite_rows, penalise
from voice_clone.autoregressive.sampling import Filters, sampling_options
from voice_clone.autoregressive.steps import FrameModel
from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.config import SamplingDefaults, TalkerConfig
from voice_clone.families.qwen3_tts.networks.prompt_reader import suppressed_ids
from voice_clone.families.qwen3_tts.sampling import SamplingParameters

CPU = torch.device("cpu")
VOCAB = 64


def random_logits(rows: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def reference_probabilities(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """One row, step by step, in fp64: the definition that the batched code must meet."""
    scores = logits.double() / temperature
    order = scores.argsort(descending=True)
    kept = order[: top_k or len(order)]
    probabilities = scores[kept].softmax(0)
    before = probabilities.cumsum(0) - probabilities  # probability of all that are likelier
    kept = kept[before < top_p]
    result = torch.zeros_like(scores)
    result[kept] = scores[kept].softmax(0)
    return result


def test_philox_known_answers() -> None:
    """The published vectors of the generator's authors (Random123, kat_vectors)."""
    ones = 0xFFFFFFFF
    cases = [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([ones] * 4, [ones] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ]
    for counter, key, expected in cases:
        got = philox4x32(np.array(counter, np.uint64), np.array(key, np.uint64))
        assert got.tolist() == expected


def test_uniforms_depend_on_seed_frame_and_codebook_alone() -> None:
    seeds, frames = [5, 2**64 - 1, 5, 0], [0, 3, 1, 0]
    together = uniforms(seeds, frames, 16)
    assert together.shape == (4, 16) and together.min() >= 0 and together.max() < 1
    for row, (seed, frame) in enumerate(zip(seeds, frames, strict=True)):
        np.testing.assert_array_equal(uniforms([seed], [frame], 16)[0], together[row])
    assert len(np.unique(together)) == together.size  # also: seeds that share their low word differ
    assert not np.array_equal(uniforms([1], [0], 16), uniforms([1 + 2**32], [0], 16))


def test_draws_made_ahead_are_the_same() -> None:
    draws = Draws(2**64 - 7, 16)
    for frame in (0, 1, 31, 32, 33, 1000, 5):
        np.testing.assert_array_equal(draws.of(frame), uniforms([2**64 - 7], [frame], 16)[0])


def test_uniforms_are_uniform() -> None:
    drawn = uniforms(list(range(500)), list(range(500)), 16).ravel()
    counts = np.bincount((drawn * 20).astype(int), minlength=20)
    expected = drawn.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001


SETTINGS = [(1.0, 0, 1.0), (0.9, 50, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.8), (0.8, 20, 0.6), (0.5, 1, 1.0), (1.0, 0, 1e-6)]


@pytest.mark.parametrize("temperature, top_k, top_p", SETTINGS)
def test_draws_follow_the_distribution(temperature: float, top_k: int, top_p: float) -> None:
    """Chi-square of 20,000 draws, seeds and frames varied as streams do."""
    draws = 20000
    logits = random_logits(1)
    sampler = make_sampler([(True, temperature, top_k, top_p)] * draws)
    uniform = torch.from_numpy(uniforms(list(range(200)) * 100, [i // 200 for i in range(draws)], 1)[:, 0])
    counts = torch.bincount(sampler(logits.expand(draws, -1), uniform), minlength=VOCAB).double()
    expected = draws * reference_probabilities(logits[0], temperature, top_k, top_p)
    assert (counts[expected == 0] == 0).all()
    bins = expected >= 5
    rest = (counts[~bins].sum(), expected[~bins].sum())
    statistic = ((counts - expected)[bins] ** 2 / expected[bins]).sum()
    if rest[1] > 5:
        statistic += (rest[0] - rest[1]) ** 2 / rest[1]
    freedom = max(1, int(bins.sum()))
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5 + 4  # beyond 4 sigma


def test_rows_are_independent() -> None:
    """A stream's draw is the same alone and among neighbours of any other parameters."""
    rows = [(True, t, k, p) for t, k, p in SETTINGS] + [(False, 0.9, 50, 1.0)]
    logits, uniform = random_logits(len(rows)), torch.from_numpy(uniforms(range(len(rows)), [9] * len(rows), 1)[:, 0])
    together = make_sampler(rows)(logits, uniform)
    for index, row in enumerate(rows):
        one = slice(index, index + 1)
        assert make_sampler([row])(logits[one], uniform[one]) == together[index]
    backwards = make_sampler(rows[::-1])(logits.flip(0), uniform.flip(0))
    assert torch.equal(backwards.flip(0), together)


def test_rows_that_are_not_finite_harm_no_other_row() -> None:
    logits = random_logits(4)
    rows = [(True, 0.9, 5, 0.9), (True, 0.9, 5, 0.9), (False, 0.9, 5, 0.9), (True, 0.9, 0, 1.0)]
    uniform = torch.full((4,), 0.7, dtype=torch.float64)
    expected = make_sampler(rows)(logits, uniform)
    for value in (torch.nan, torch.inf):
        broken = logits.clone()
        broken[1], broken[2, 3] = value, value
        drawn = make_sampler(rows)(broken, uniform)
        assert drawn[0] == expected[0] and drawn[3] == expected[3]
        assert ((drawn >= 0) & (drawn < VOCAB)).all()


def test_greedy_takes_the_most_likely() -> None:
    logits = random_logits(3)
    for rows in ([(False, 0.1, 3, 0.5)] * 3, [(False, 2.0, 0, 1.0), (True, 1.0, 1, 1.0), (True, 1.0, 0, 1e-9)]):
        uniform = torch.tensor([0.1, 0.5, 0.999], dtype=torch.float64)
        assert torch.equal(make_sampler(rows)(logits, uniform), logits.argmax(-1))


def test_the_first_of_equally_likely_codes_is_taken() -> None:
    """Whether or not other rows sample."""
    logits = torch.zeros(2, VOCAB)
    logits[:, [7, 9]] = 1.0
    uniform = torch.tensor([0.9, 0.9], dtype=torch.float64)
    for other in (False, True):
        assert make_sampler([(False, 1.0, 0, 1.0), (other, 1.0, 50, 1.0)])(logits, uniform)[0] == 7


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-32])
def test_impossible_codes_are_never_drawn(uniform: float) -> None:
    logits = random_logits(1)
    logits[0, [0, 1, VOCAB - 1]] = -torch.inf
    drawn = make_sampler([(True, 1.0, 0, 1.0)])(logits, torch.tensor([uniform], dtype=torch.float64))
    assert drawn.item() == (2 if uniform == 0.0 else VOCAB - 2)


def test_extreme_temperatures_are_finite() -> None:
    logits, uniform = 1e4 * random_logits(2), torch.tensor([0.3, 0.3], dtype=torch.float64)
    drawn = make_sampler([(True, 1e-300, 0, 1.0), (True, 1e30, 0, 1.0)])(logits, uniform)
    assert drawn[0] == logits[0].argmax()
    assert drawn[1] == int(0.3 * VOCAB)  # flat


def test_ties_of_the_kth_are_kept() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 10] = 1.0
    grid = (torch.arange(640, dtype=torch.float64) + 0.5) / 640
    drawn = make_sampler([(True, 1.0, 2, 1.0)] * 640)(logits.expand(640, -1), grid)
    assert len(set(drawn.tolist())) == VOCAB


@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("size", [20, 64, 2048, 3072])
def test_rows_that_all_draw_among_few_codes_get_the_same_codes(size: int, top_p: float) -> None:
    """As in the kind of draw that does for rows without a limit, too; with ties, forbidden codes and extreme heat."""
    random = torch.Generator().manual_seed(size)
    logits = (4 * torch.randn(600, size, generator=random)).bfloat16().float()
    logits[:, : size // 8] = -torch.inf
    logits[:50, size // 8 + 5 :] = -torch.inf  # fewer codes than the limit
    temperatures = [1e-300, 0.1, 0.9, 1.0, 1.7, 1e30]
    rows = [(1.0, max(temperatures[n % 6], 1e-38), (1, 2, 7, 50, 64)[n % 5], top_p) for n in range(len(logits))]
    values = np.array(rows)
    uniform = torch.rand(len(rows), dtype=torch.float64, generator=random)
    uniform[::7], uniform[1::7] = 0.0, 1 - 2.0**-32
    limited = Filters.of(values)
    assert limited.limited and limited.top_k == 64 and not Filters(True, 64, True).limited
    table = torch.from_numpy(values).float()
    expected = Sampler(table, limited._replace(limited=False))(logits, uniform)
    assert torch.equal(Sampler(table, limited)(logits, uniform), expected)
    assert len(expected.unique()) > min(10, size // 2)


def test_rows_that_all_draw_among_few_codes_touch_no_other_row() -> None:
    logits = random_logits(5)
    rows = [(True, 0.9, 5, 1.0)] * 5
    uniform = torch.tensor([0.7, 1 - 2.0**-32, 0.2, 0.999, 0.4], dtype=torch.float64)
    expected = make_sampler(rows)(logits, uniform)
    for value in (torch.nan, torch.inf, -torch.inf):
        broken = logits.clone()
        broken[1], broken[2, 3], broken[3, :] = value, value, torch.nan
        drawn = make_sampler(rows)(broken, uniform)
        assert drawn[0] == expected[0] and drawn[4] == expected[4]
        assert ((drawn >= 0) & (drawn < VOCAB)).all()
        assert finite_rows(broken).tolist() == [True, False, False, False, True]


def test_what_the_rows_of_a_step_need(tmp_path: Path) -> None:
    """Rows without a stream change nothing."""
    model = FrameModel(make_talker(read_config("equal", tmp_path / "checkpoint"), 0), 4, 8)
    draws = np.zeros(model.talker.head.draws)
    few, all_codes, likeliest = (
        sampling_options(True, 1.0, 50, 1.0),
        sampling_options(True, 1.0, 0, 1.0),
        sampling_options(False, 1.0, 50, 1.0),
    )
    for rows, expected in (
        ([few, few], Filters(True, 50, False, limited=True)),
        ([few, all_codes], Filters(True, 50, False)),
        ([few, likeliest], Filters(True, 50, False)),
        ([likeliest], Filters(False, 0, False)),
    ):
        made = [Row(n, np.array([1.0, *row, *few]), draws, True, 0, 0, torch.zeros(1)) for n, row in enumerate(rows)]
        needed = model.variant(model.pack([None, *made, None]))
        assert needed == CodeVariant(expected, Filters(True, 50, False, limited=True))
        variant = next(variant for variant in model.talker.head.variants if variant.covers(needed))
        assert variant.first.limited == (rows == [few, few])
    assert not model.variant(model.pack([None])).first.sampled


def test_penalty() -> None:
    logits = torch.tensor([[2.0, -2.0, 3.0], [2.0, -2.0, 3.0]])
    used = torch.tensor([[True, True, False], [False, False, True]])
    penalised = penalise(logits, used, torch.tensor([[2.0], [0.5]]))
    assert penalised.tolist() == [[1.0, -4.0, 3.0], [2.0, -2.0, 6.0]]
    assert torch.equal(penalise(logits, used, torch.ones(2, 1)), logits)


def test_temperature_comes_before_top_p() -> None:
    """The other order would keep two codes here."""
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, :2] = torch.tensor([1.0, 0.0])  # 73 % and 27 %; at temperature 0.2 99 % and 1 %
    grid = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    sampler = make_sampler([(True, 0.2, 0, 0.9)] * 1000)
    assert sampler(logits.expand(1000, -1), grid).eq(0).all()


def test_top_k_comes_before_top_p() -> None:
    """top_p counts the probability among the top k, not among all."""
    logits = torch.zeros(1, VOCAB)
    logits[0, :2] = torch.tensor([2.0, 1.0])  # among these two: 73 % and 27 %; among all 64: 10 % and 4 %
    grid = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    sampler = make_sampler([(True, 1.0, 2, 0.7)] * 1000)
    assert sampler(logits.expand(1000, -1), grid).eq(0).all()


def test_suppressed_ids() -> None:
    config = TalkerConfig(text_vocab_size=10, vocab_size=3072, codec_eos_token_id=2150)
    allowed = np.flatnonzero(~suppressed_ids(config)).tolist()
    assert allowed == [*range(2048), 2150]


@pytest.mark.parametrize(
    "name, values",
    [
        ("seed", [-1, 2**64]),
        ("temperature", [0.0, -1.0, float("nan"), float("inf")]),
        ("subtalker_temperature", [0.0, float("nan"), 10**400]),
        ("repetition_penalty", [0.0, -0.5, float("nan")]),
        ("top_p", [0.0, -0.1, 1.01, float("nan")]),
        ("subtalker_top_p", [0.0, 1.5]),
        ("top_k", [-1]),
        ("subtalker_top_k", [-5]),
    ],
)
def test_ranges(name: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(InvalidArgument, match=name):
            SamplingParameters(**{"seed": 0, name: value})  # type: ignore[arg-type]


def test_defaults_of_the_checkpoint() -> None:
    defaults = SamplingDefaults(temperature=0.5, subtalker_do_sample=False, subtalker_top_k=7, repetition_penalty=1.2)
    parameters = SamplingParameters.from_defaults(defaults, seed=3)
    assert (parameters.seed, parameters.temperature, parameters.subtalker_do_sample) == (3, 0.5, False)
    assert (parameters.subtalker_top_k, parameters.repetition_penalty) == (7, 1.2)
    assert dataclasses.replace(parameters, top_k=1).top_k == 1
