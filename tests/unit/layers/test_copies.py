"""Rows on their way between the host and a GPU that is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.pretend_gpu import pretend_gpu
from voice_clone.layers.graphs import Download


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 0, 2, 1, 3)])
def test_rows_may_be_taken_at_any_time(order: tuple[int, ...]) -> None:
    """Of more copies than there is pinned memory for, in any order, and again."""
    with pretend_gpu(), torch.inference_mode():
        download, waits = Download((3, 2), torch.int64, torch.device("cuda")), []
        for number in range(5):
            download.device.fill_(number)
            waits.append(download.start(2))
        for number in order:
            np.testing.assert_array_equal(waits[number](), np.full((2, 2), number))
