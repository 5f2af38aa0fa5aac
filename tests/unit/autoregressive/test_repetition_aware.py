"""Sampling as fish-speech has it, against its rule written out in numpy: the cut before the temperature, and RAS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from voice_clone.autoregressive.code_head import (
    NEUTRAL,
    RECENT_CODES,
    CodeRows,
    NativeRepetitionAwareFirstCode,
    RepetitionAwareFirstCode,
)
from voice_clone.autoregressive.frame_head import Row, RowTable
from voice_clone.autoregressive.philox import uniforms
from voice_clone.autoregressive.sampling import FilterFirstSampler, Filters, sampling_options
from voice_clone.native.transformer.draw import draw_filter_first

CODES = 400
END = CODES - 1
DRAWS = 100_000
KNOBS = [(1.0, 30, 0.9), (0.7, 30, 0.9), (1.6, 0, 0.5), (1.0, 5, 1.0), (0.3, 0, 1.0), (2.0, 50, 0.99)]

Array = np.ndarray[Any, np.dtype[np.float64]]


def probabilities(logits: Array, temperature: float, top_k: int, top_p: float) -> Array:
    """The rule: sort; drop rank >= k, and what lies beyond p of the cumulative sum but the first; heat; normalise."""
    order = np.argsort(-logits, kind="stable")
    weights = np.exp(logits[order] - logits.max())
    reached = np.cumsum(weights / weights.sum())
    kept = np.ones(len(logits), bool)
    if top_k:
        kept[top_k:] = False
    if top_p < 1:
        kept &= reached <= top_p
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
@pytest.mark.parametrize("native", [False, True], ids=["torch", "native"])
def test_draws_follow_the_rule(temperature: float, top_k: int, top_p: float, native: bool) -> None:
    logits = logits_of(top_k)
    row = torch.tensor([sampling_options(True, temperature, top_k, top_p)])
    if native:
        memory = np.zeros(CODES, np.int32), np.zeros(CODES, np.float32)
        flat = row[0].float().numpy()
        drawn = [draw_filter_first(logits.numpy(), flat, u, *memory) for u in numbers()[:, 0].tolist()]
        codes = torch.tensor(drawn)
    else:
        sampler = FilterFirstSampler(row.float(), Filters.of(row.numpy().astype(np.float64)))
        parts = [sampler(logits.expand(len(u), -1), u) for u in torch.split(numbers()[:, 0], 20_000)]
        codes = torch.cat(parts)
    counts = np.bincount(codes.numpy(), minlength=CODES).astype(float)
    wanted = DRAWS * probabilities(logits.double().numpy(), temperature, top_k, top_p)
    assert chi_square(counts, wanted) < 1.6


def table(rows: int, sampling: tuple[bool, float, int, float], recent: Sequence[int], may_stop: bool = True) -> Any:
    """The same row so often, each with numbers of its own; and what the samplers need."""
    first = sampling_options(*sampling)
    fixed = np.array([1.0, *first, *first])
    uniform = numbers(rows).numpy()
    made = [Row(n, fixed, uniform[n], may_stop, 0, 0, torch.zeros(1)) for n in range(rows)]
    packed = RowTable.pack(made, NEUTRAL, 2, 0)
    latest = torch.tensor([*[-1] * (RECENT_CODES - len(recent)), *recent]).expand(rows, -1)
    return CodeRows(RowTable(torch.from_numpy(packed), 2), latest), Filters.of(np.array([first]))


def first_codes(kind: str, logits: Tensor, *arguments: Any) -> Tensor:
    rows, filters = table(*arguments)
    given = logits.repeat(len(rows.may_stop), 1)
    used = torch.zeros(len(given), CODES, dtype=torch.bool)
    chooser = RepetitionAwareFirstCode(END) if kind == "torch" else NativeRepetitionAwareFirstCode(CODES, END)
    codes, finite = chooser(given, used, rows, filters)
    assert finite.all()
    return codes


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_a_recent_code_is_drawn_again(kind: str) -> None:
    """Distribution over 100,000 draws: of each recent code the part that is drawn again goes to the second draw's."""
    logits = logits_of(7)
    plain = probabilities(logits.double().numpy(), 0.7, 30, 0.8)
    again = probabilities(logits.double().numpy(), 1.0, 30, 0.9)
    recent = [int(code) for code in np.argsort(-plain)[:3]]
    history = [0, *[5] * (RECENT_CODES - 4), *recent]  # the first is outside the window
    repeated = np.zeros(CODES, bool)
    repeated[[*recent, 5]] = True
    expected = np.where(repeated, 0, plain) + plain[repeated].sum() * again
    codes = first_codes(kind, logits, DRAWS, (True, 0.7, 30, 0.8), history)
    counts = np.bincount(codes.numpy(), minlength=CODES).astype(float)
    assert chi_square(counts, DRAWS * expected) < 1.6
    assert chi_square(counts, DRAWS * plain + 1e-9) > 100, "without the second draw it would be another distribution"


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_the_first_frame_never_enters_the_window(kind: str) -> None:
    logits = logits_of(8)
    best = int(logits.argmax())
    sampling = (True, 1.0, 30, 0.9)
    untouched = first_codes(kind, logits, 4000, sampling, [])
    assert torch.equal(first_codes(kind, logits, 4000, sampling, [best]), untouched)
    assert torch.equal(first_codes(kind, logits, 4000, sampling, [best, *[END - 1] * 3]), untouched)
    assert not torch.equal(first_codes(kind, logits, 4000, sampling, [END - 1, best]), untouched)
    outside = [3, best, *[END - 1] * (RECENT_CODES - 1)][-RECENT_CODES:]  # the eleventh before
    assert torch.equal(first_codes(kind, logits, 4000, sampling, outside), untouched)


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_the_likeliest_code_is_not_drawn_again(kind: str) -> None:
    logits = logits_of(9)
    best = int(logits.argmax())
    codes = first_codes(kind, logits, 50, (False, 1.0, 30, 0.9), [0, best, best, best])
    assert (codes == best).all()


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_the_end_comes_only_when_it_may(kind: str) -> None:
    logits = logits_of(10)
    logits[END] = 20
    sampling = (True, 1.0, 30, 0.9)
    assert (first_codes(kind, logits, 50, sampling, [0, 1]) == END).all()
    assert not (first_codes(kind, logits, 50, sampling, [0, 1], False) == END).any()


def test_native_codes_are_those_of_tensors() -> None:
    different = 0
    for seed in range(20):
        logits = logits_of(100 + seed)
        likely = [int(code) for code in logits.argsort(descending=True)[:6]]
        arguments = (500, (True, 0.8, 30, 0.9), [0, *likely])
        different += int((first_codes("torch", logits, *arguments) != first_codes("native", logits, *arguments)).sum())
    assert different <= 5  # where a draw falls between two codes, the last bit of a sum decides
