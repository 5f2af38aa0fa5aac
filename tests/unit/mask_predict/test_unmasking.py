"""Steps of unmasking: schedules, draws, and which cells become which codes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from voice_clone.errors import InvalidArgument
from voice_clone.mask_predict.unmasking import CLASSES, POSITIONS, Unmasking, uniforms, unmask

CODEBOOKS, FRAMES, CODES = 3, 5, 7
MASK = CODES
QUIET: dict[str, Any] = {"seed": 3, "position_temperature": 0.0}


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(CODEBOOKS, FRAMES, CODES + 1, generator=torch.Generator().manual_seed(seed))


def masked() -> torch.Tensor:
    return torch.full((CODEBOOKS, FRAMES), MASK)


@pytest.mark.parametrize("cells", [1, 8, 264, 3000])
@pytest.mark.parametrize("steps", [1, 2, 32, 1000])
def test_a_schedule_unmasks_each_cell_once(cells: int, steps: int) -> None:
    schedule = Unmasking(seed=0, steps=steps).schedule(cells)
    numbers = [step for step, _ in schedule]
    assert sum(count for _, count in schedule) == cells and min(count for _, count in schedule) > 0
    assert numbers == sorted(set(numbers)) and numbers[0] >= 0 and numbers[-1] < steps


def test_a_shift_below_one_puts_cells_off() -> None:
    late, even = (dict(Unmasking(seed=0, steps=8, shift=shift).schedule(800)) for shift in (0.1, 1.0))
    assert set(even.values()) == {100} and late[0] < 20 and late[7] > 400


def test_draws_depend_on_all_that_names_them_and_on_nothing_else() -> None:
    first = uniforms(2**63 + 5, 1, 2, POSITIONS, 1000)
    assert first.dtype == np.float32 and first.min() >= 0 and first.max() < 1 and abs(first.mean() - 0.5) < 0.05
    assert np.array_equal(uniforms(2**63 + 5, 1, 2, POSITIONS, 10), first[:10])
    others = [
        (5, 1, 2, POSITIONS),
        (2**63 + 5, 0, 2, POSITIONS),
        (2**63 + 5, 1, 3, POSITIONS),
        (2**63 + 5, 1, 2, CLASSES),
    ]
    for other in others:
        assert not np.isin(uniforms(*other, 1000), first).any() or not np.array_equal(uniforms(*other, 1000), first)
        assert np.corrcoef(uniforms(*other, 1000), first)[0, 1] < 0.2


def test_the_most_confident_cells_get_their_likeliest_codes() -> None:
    given = logits()
    codes = masked()
    assert unmask(codes, given, None, Unmasking(**QUIET, layer_penalty=0.0), 0, 0, 4)
    likely = torch.log_softmax(given, -1)[..., :MASK].max(-1)
    best = likely.values.flatten().topk(4).indices
    expected = masked()
    expected.view(-1)[best] = likely.indices.flatten()[best]
    assert torch.equal(codes, expected)


def test_cells_that_have_codes_keep_them() -> None:
    codes = masked()
    codes[:, :2] = 1
    unmask(codes, logits(), None, Unmasking(seed=1), 0, 3, 9)
    assert (codes[:, :2] == 1).all() and (codes != MASK).all()


def test_a_penalty_puts_later_codebooks_off() -> None:
    codes = masked()
    unmask(codes, logits(), None, Unmasking(**QUIET, layer_penalty=1000.0), 0, 0, 2 * FRAMES)
    assert (codes[:2] != MASK).all() and (codes[2] == MASK).all()


def test_guidance_moves_away_from_what_needs_no_prompt() -> None:
    given, without = torch.zeros(1, 1, 4), torch.zeros(1, 1, 4)
    given[0, 0, :2], without[0, 0, 0] = torch.tensor([1.0, 0.9]), 3.0
    chosen = []
    for guidance, unguided in ((0.0, None), (2.0, without)):
        codes = torch.full((1, 1), 3)
        unmask(codes, given, unguided, Unmasking(**QUIET, guidance=guidance), 0, 0, 1)
        chosen.append(int(codes))
    assert chosen == [0, 1]


def test_classes_are_drawn_among_the_likeliest() -> None:
    given = torch.zeros(1, 400, 101)
    given[..., :11] = 5 - torch.arange(11.0)  # a tenth of 101, rounded up
    given[..., 11:] = -20.0
    codes = torch.full((1, 400), 100)
    unmask(codes, given, None, Unmasking(seed=4, class_temperature=3.0), 0, 0, 400)
    found = codes[0].bincount(minlength=101)
    assert found[11:].sum() == 0 and (found[:3] > 0).all() and found[0] > found[5]


def test_what_is_not_finite_is_told() -> None:
    given = logits()
    given[1, 2, 3] = math.nan
    assert not unmask(masked(), given, None, Unmasking(seed=0), 0, 0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"steps": 1001},
        {"shift": 0.0},
        {"guidance": -1.0},
        {"layer_penalty": -0.1},
        {"position_temperature": -1.0},
        {"class_temperature": 1e-9},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="must"):
        Unmasking(seed=0, **wrong)
