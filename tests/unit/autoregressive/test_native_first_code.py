"""Codebook 0 by native code: what penalties, masks and the sampler give in tensors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from voice_clone.autoregressive.code_head import FIRST, NEUTRAL, CodeRows
from voice_clone.autoregressive.first_code import TorchFirstCode
from voice_clone.autoregressive.frame_head import Row, RowTable
from voice_clone.autoregressive.native_first_code import NativeFirstCode
from voice_clone.autoregressive.sampling import Filters

CODES, END = 300, 200
ROWS = 64
KNOBS = [(0.0, 0.9, 50, 1.0), (1.0, 0.9, 50, 1.0), (1.0, 1.3, 0, 1.0), (1.0, 0.7, 20, 0.8), (1.0, 0.5, 400, 0.3)]


@dataclass
class Rows:
    """What a step knows of some rows."""

    logits: Tensor
    used: Tensor
    penalty: Tensor
    may_stop: Tensor
    knobs: Tensor
    uniform: Tensor

    @classmethod
    def random(cls, seed: int) -> Rows:
        random = torch.Generator().manual_seed(seed)
        return cls(
            logits=4 * torch.randn(ROWS, CODES, generator=random),
            used=torch.rand(ROWS, CODES, generator=random) < 0.3,
            penalty=1 + torch.rand(ROWS, 1, generator=random),
            may_stop=torch.rand(ROWS, generator=random) < 0.5,
            knobs=torch.tensor([KNOBS[row % len(KNOBS)] for row in range(ROWS)]),
            uniform=torch.rand(ROWS, generator=random, dtype=torch.float64),
        )

    def at(self, rows: slice) -> Rows:
        return Rows(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))


def suppressed() -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask = np.zeros(CODES, np.bool_)
    mask[180:] = True
    mask[END] = False
    return mask


def table(rows: Rows) -> tuple[CodeRows, Filters]:
    """The rows as a step has them."""
    packed = [
        Row(
            slot=index,
            sampling=np.array([float(rows.penalty[index]), *rows.knobs[index].tolist(), 0.0, 1.0, 0.0, 1.0]),
            draws=rows.uniform[index : index + 1].numpy(),
            may_stop=bool(rows.may_stop[index]),
            frame=0,
            position=0,
            text=torch.zeros(1),
        )
        for index in range(len(rows.logits))
    ]
    found = RowTable(torch.from_numpy(RowTable.pack(packed, NEUTRAL, 1, 0)), 1)
    filters = Filters.of(np.array([row.sampling[FIRST] for row in packed]))
    return CodeRows(found, torch.zeros(len(packed), 0)), filters


def native(rows: Rows) -> tuple[Tensor, Tensor]:
    return NativeFirstCode(suppressed(), END)(rows.logits.clone(), rows.used, *table(rows))


def in_tensors(rows: Rows) -> tuple[Tensor, Tensor]:
    return TorchFirstCode(suppressed(), END)(rows.logits, rows.used, *table(rows))


def test_codes_are_those_of_tensors() -> None:
    different, ends = 0, 0
    for seed in range(10):
        rows = Rows.random(seed)
        rows.logits[:, END] += 6
        codes, finite = native(rows)
        expected, _ = in_tensors(rows)
        different += int((codes != expected).sum())
        ends += int((codes == END).sum())
        assert finite.all() and codes.dtype == torch.int64
        assert not suppressed()[codes].any() and not (codes[~rows.may_stop] == END).any()
    assert different <= 1  # where a draw falls between two codes, the last bit of a sum decides
    assert ends > 20


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_detected_and_spoil_no_other_row(bad: float) -> None:
    rows = Rows.random(0)
    expected, _ = native(rows)
    rows.logits[3, 7], rows.logits[5, CODES - 1] = bad, bad  # one of them suppressed
    codes, finite = native(rows)
    assert (~finite).nonzero()[:, 0].tolist() == [3, 5]
    assert torch.equal(codes[finite], expected[finite]) and ((codes >= 0) & (codes < CODES)).all()


def test_infinity_by_the_penalty_is_detected() -> None:
    rows = Rows.random(0).at(slice(0, 2))
    rows.logits[1, 9], rows.used[1, 9], rows.penalty[1] = -3e38, True, 2.0
    assert native(rows)[1].tolist() == in_tensors(rows)[1].tolist() == [True, False]


def test_a_row_alone_is_what_it_is_among_others() -> None:
    rows = Rows.random(1)
    codes, _ = native(rows)
    alone = [native(rows.at(slice(row, row + 1)))[0] for row in range(ROWS)]
    np.testing.assert_array_equal(torch.cat(alone), codes)
