"""Codebook 0 of frames from its logits: penalty, suppressed codes, end of speech, sampler."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from voice_clone.autoregressive.rows import RowTable
from voice_clone.autoregressive.sampling import Filters, Sampler, penalise
from voice_clone.native.transformer.first_code import first_codes


class TorchFirstCode:
    """In torch, on any device; reads no value. Called as `Talker.first_code`.

    Args:
        suppressed: bool [V], the codes that never come.
        end: the code of the end of speech.
    """

    def __init__(self, suppressed: Tensor, end: int) -> None:
        self._suppressed, self._end = suppressed, end

    def __call__(self, logits: Tensor, used: Tensor, table: RowTable, filters: Filters) -> tuple[Tensor, Tensor]:
        logits = penalise(logits.float(), used, table.penalty)
        finite = torch.isfinite(logits).all(dim=-1)
        logits = logits.masked_fill(self._suppressed, -torch.inf)
        logits[:, self._end] = torch.where(table.may_stop, logits[:, self._end], -torch.inf)
        return Sampler(table.first, filters)(logits, table.uniform[:, 0]), finite


class NativeFirstCode:
    """As one call of native code; for logits in fp32 on a CPU.

    Args: as of `TorchFirstCode`.
    """

    def __init__(self, suppressed: Tensor, end: int) -> None:
        self._suppressed, self._end = suppressed.numpy(), end
        self._memory = np.zeros(len(suppressed), np.int32), np.zeros(len(suppressed), np.float32)

    def __call__(self, logits: Tensor, used: Tensor, table: RowTable, filters: Filters) -> tuple[Tensor, Tensor]:
        """Overwrites `logits`. `filters` is not needed."""
        codes, finite = np.zeros(len(logits), np.int64), np.zeros(len(logits), np.bool_)
        first_codes(
            logits.numpy(),
            used.contiguous().numpy(),
            table.penalty.contiguous().numpy().reshape(-1),
            self._suppressed,
            self._end,
            table.may_stop.contiguous().numpy(),
            table.first.contiguous().numpy(),
            table.uniform[:, 0].contiguous().numpy(),
            *self._memory,
            codes,
            finite,
        )
        return torch.from_numpy(codes), torch.from_numpy(finite)
