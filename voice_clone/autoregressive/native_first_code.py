"""Codebook 0 of frames from its logits as one call of native code."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from voice_clone.native.transformer.first_code import first_codes


class NativeFirstCode:
    """What `FrameModel.first_code` does to logits.

    Args:
        suppressed: bool [V], the codes that never come.
        end: the code of the end of speech.
    """

    def __init__(self, suppressed: Tensor, end: int) -> None:
        self._suppressed, self._end = suppressed.numpy(), end
        self._memory = np.zeros(len(suppressed), np.int32), np.zeros(len(suppressed), np.float32)

    def __call__(
        self, logits: Tensor, used: Tensor, penalty: Tensor, may_stop: Tensor, knobs: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor]:
        """logits fp32 [B, V], which are lost, used bool [B, V], the others as in `RowTable` -> codes int64 [B], and
        whether all was finite, bool [B].
        """
        codes, finite = np.zeros(len(logits), np.int64), np.zeros(len(logits), np.bool_)
        first_codes(
            logits.numpy(),
            used.contiguous().numpy(),
            penalty.contiguous().numpy().reshape(-1),
            self._suppressed,
            self._end,
            may_stop.contiguous().numpy(),
            knobs.contiguous().numpy(),
            uniform.contiguous().numpy(),
            *self._memory,
            codes,
            finite,
        )
        return torch.from_numpy(codes), torch.from_numpy(finite)
