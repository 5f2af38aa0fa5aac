"""Sampling that cuts before the temperature, and repetition-aware sampling, against their rules in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from voice_clone.autoregressive.code_head import NEUTRAL, CodeRows
from voice_clone.autoregressive.first_code import RepetitionAwareFirstCode
from voice_clone.autoregressive.frame_head import Row, RowTable
from voice_clone.autoregressive.native_first_code import NativeRepetitionAwareFirstCode
from voice_clone.autoregressive.philox import uniforms
from voice_clone.autoregressive.repetition_rule import RepetitionRule
from voice_clone.autoregressive.samplers import FilterFirstSampler, NucleusSampler
from voice_clone.autoregressive.sampling import NUCLEUS, Filters, sampling_options
from voice_clone.families.fish_speech.talker import REPETITION
from voice_clone.native.kernels.transformer.draw import draw_filter_first

pytestmark = pytest.mark.thorough

CODES = 400
END = CODES - 1
DRAWS = 100_000
KNOBS = [(1.0, 30, 0.9), (0.7, 30, 0.9), (1.6, 0, 0.5), (1.0, 5, 1.0), (0.3, 0, 1.0), (2.0, 50, 0.99)]

# The other values of all that a rule has.
OTHER = RepetitionRule(NUCLEUS, window=10, first_frame=True, exclude=True, temperature=None, top_k=0, top_p=1.0)
RULES = pytest.mark.parametrize("rule", [REPETITION, OTHER], ids=["fish", "other"])
KINDS = pytest.mark.parametrize("kind", ["torch", "native"])

Array = np.ndarray[Any, np.dtype[np.float64]]


def probabilities(logits: Array, temperature: float, top_k: int, top_p: float, crossing: bool = False) -> Array:
    """The rule: sort; drop rank >= k, and what lies beyond p of the cumulative sum but the first; heat; normalise.

    crossing: the code with which the sum reaches p stays, too.
    """
    order = np.argsort(-logits, kind="stable")
    weights = np.exp(logits[order] - logits.max())
    reached = np.cumsum(weights / weights.sum())
    kept = np.ones(len(logits), bool)
    if top_k:
        kept[top_k:] = False
    if top_p < 1:
        kept &= reached - weights / weights.sum() < top_p if crossing else reached <= top_p
    kept[0] = True
    scaled = np.where(kept, np.exp((logits[order] - logits.max()) / temperature), 0.0)
    found = np.zeros_like(scaled)
    found[order] = scaled / scaled.sum()
    return found


def chi_square(counts: Array, expected: Array) -> float:
    """Per degree of freedom, of the codes that come often enough; what cannot come has not come."""
    assert not counts[expected == 0].any()
    often = expected > 20
    return float((np.square(counts - expected)[often] / expected[often]).sum() / max(1, often.sum() - 1))


def logits_of(seed: int) -> Tensor:
    return 2.5 * torch.randn(CODES, generator=torch.Generator().manual_seed(seed))


def numbers(count: int = DRAWS) -> Tensor:
    """As streams have them: two of each frame."""
    return torch.from_numpy(uniforms([seed % 1000 for seed in range(count)], [n // 1000 for n in range(count)], 2))


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), KNOBS)
@pytest.mark.parametrize("kind", [FilterFirstSampler, NucleusSampler])
@pytest.mark.parametrize("native", [False, True], ids=["torch", "native"])
def test_draws_follow_the_rule(
    temperature: float, top_k: int, top_p: float, native: bool, kind: type[FilterFirstSampler]
) -> None:
    logits = logits_of(top_k)
    row = torch.tensor([sampling_options(True, temperature, top_k, top_p)])
    if native:
        memory = np.zeros(CODES, np.int32), np.zeros(CODES, np.float32)
        flat = row[0].float().numpy()
        drawn = [draw_filter_first(logits.numpy(), flat, u, *memory, kind.crossing) for u in numbers()[:, 0].tolist()]
        codes = torch.tensor(drawn)
    else:
        sampler = kind(row.float(), Filters.of(row.numpy().astype(np.float64)))
        parts = [sampler(logits.expand(len(u), -1), u) for u in torch.split(numbers()[:, 0], 20_000)]
        codes = torch.cat(parts)
    counts = np.bincount(codes.numpy(), minlength=CODES).astype(float)
    wanted = DRAWS * probabilities(logits.double().numpy(), temperature, top_k, top_p, kind.crossing)
    assert chi_square(counts, wanted) < 1.6


def table(
    rows: int, window: int, sampling: tuple[bool, float, int, float], recent: Sequence[int], may_stop: bool = True
) -> Any:
    """The same row so often, each with numbers of its own; and what the samplers need."""
    first = sampling_options(*sampling)
    fixed = np.array([1.0, *first, *first])
    uniform = numbers(rows).numpy()
    made = [Row(n, fixed, uniform[n], may_stop, 0, 0, torch.zeros(1)) for n in range(rows)]
    packed = RowTable.pack(made, NEUTRAL, 2, 0)
    latest = torch.tensor([*[-1] * (window - len(recent)), *recent]).expand(rows, -1)
    return CodeRows(RowTable(torch.from_numpy(packed), 2), latest), Filters.of(np.array([first]))


def first_codes(kind: str, rule: RepetitionRule, logits: Tensor, count: int, *arguments: Any, end: int = END) -> Tensor:
    rows, filters = table(count, rule.recent, *arguments)
    given = logits.repeat(len(rows.may_stop), 1)
    used = torch.zeros(len(given), CODES, dtype=torch.bool)
    torchs, natives = RepetitionAwareFirstCode(end, rule), NativeRepetitionAwareFirstCode(CODES, end, rule)
    chooser = torchs if kind == "torch" else natives
    codes, finite = chooser(given, used, rows, filters)
    assert finite.all()
    return codes


@RULES
@KINDS
def test_a_recent_code_is_drawn_again(kind: str, rule: RepetitionRule) -> None:
    """Distribution over 100,000 draws: of each recent code the part that is drawn again goes to the second draw's."""
    logits = logits_of(7)
    exact, fish = logits.double().numpy(), rule is REPETITION
    plain = probabilities(exact, 0.7, 30, 0.8, crossing=not fish)
    recent = [int(code) for code in np.argsort(-plain)[:3]]
    before = [0, *[5] * 6] if fish else [5] * 6  # fish: what is before the window says that there was something
    history = [*before, 5, *recent]
    assert len(history) == rule.recent
    expected = np.where(np.isin(np.arange(CODES), [5, *recent]), 0, plain)
    for code in {5, *recent}:
        again = probabilities(exact, 1.0, 30, 0.9) if fish else probabilities(exact, 0.7, 0, 1.0)
        if not fish:
            again[code] = 0
        expected += plain[code] * again / again.sum()
    codes = first_codes(kind, rule, logits, DRAWS, (True, 0.7, 30, 0.8), history)
    counts = np.bincount(codes.numpy(), minlength=CODES).astype(float)
    assert chi_square(counts, DRAWS * expected) < 1.6
    assert chi_square(counts, DRAWS * plain + 1e-9) > 100, "without the second draw it would be another distribution"


@KINDS
def test_the_first_frame_never_enters_the_window(kind: str) -> None:
    logits = logits_of(8)
    best = int(logits.argmax())
    sampling = (True, 1.0, 30, 0.9)
    untouched = first_codes(kind, REPETITION, logits, 4000, sampling, [])
    assert torch.equal(first_codes(kind, REPETITION, logits, 4000, sampling, [best]), untouched)
    assert torch.equal(first_codes(kind, REPETITION, logits, 4000, sampling, [best, *[END - 1] * 3]), untouched)
    assert not torch.equal(first_codes(kind, REPETITION, logits, 4000, sampling, [END - 1, best]), untouched)
    outside = [3, best, *[END - 1] * REPETITION.recent][-REPETITION.recent :]  # the eleventh before
    assert torch.equal(first_codes(kind, REPETITION, logits, 4000, sampling, outside), untouched)


@KINDS
def test_the_first_frame_enters_the_window_if_the_rule_says_so(kind: str) -> None:
    logits = logits_of(8)
    best = int(logits.argmax())
    sampling = (True, 1.0, 30, 0.9)
    untouched = first_codes(kind, OTHER, logits, 4000, sampling, [])
    assert (untouched == best).any()
    for recent in ([best], [best, *[END - 1] * 9]):
        assert not (first_codes(kind, OTHER, logits, 4000, sampling, recent) == best).any()


@RULES
@KINDS
def test_the_likeliest_code_is_not_drawn_again(kind: str, rule: RepetitionRule) -> None:
    logits = logits_of(9)
    best = int(logits.argmax())
    codes = first_codes(kind, rule, logits, 50, (False, 1.0, 30, 0.9), [0, best, best, best])
    assert (codes == best).all()


@RULES
@KINDS
@pytest.mark.parametrize("sampled", [False, True])
def test_the_end_comes_only_when_it_may(kind: str, rule: RepetitionRule, sampled: bool) -> None:
    """The codes behind the end are the end, too."""
    logits = logits_of(10)
    sampling = (sampled, 1.0, 30, 0.9)
    for code in (END - 2, END):
        logits[code] = 20
        assert (first_codes(kind, rule, logits, 50, sampling, [0, 1], end=END - 2) == END - 2).all()
        codes = first_codes(kind, rule, logits, 50, sampling, [0, 1], False, end=END - 2)
        assert (codes < END - 2).all()
        logits[code] = 0


@RULES
def test_native_codes_are_those_of_tensors(rule: RepetitionRule) -> None:
    different = 0
    for seed in range(20):
        logits = logits_of(100 + seed)
        likely = [int(code) for code in logits.argsort(descending=True)[:6]]
        arguments = (rule, logits, 500, (True, 0.8, 30, 0.9), [0, *likely])
        different += int((first_codes("torch", *arguments) != first_codes("native", *arguments)).sum())
    assert different <= 5  # where a draw falls between two codes, the last bit of a sum decides
