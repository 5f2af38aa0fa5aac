"""Codebook 0 of frames from its logits: penalty, suppressed codes, end of speech, sampler; or repetition-aware."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.autoregressive.sampling import CodeSampling, Filters, Sampler, UnheatedSampler, finite_rows, penalise
from voice_clone.autoregressive.steps.rows import RowTable
from voice_clone.native.transformer.draw import first_codes, repetition_aware_codes

PENALTY, FIRST, OTHERS, COLUMNS = 0, slice(1, 5), slice(5, 9), 9  # the sampling columns of codes
NEUTRAL = np.array([1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0])


def columns(sampling: CodeSampling) -> npt.NDArray[np.float64]:
    """The sampling columns of a stream of codes, fp64 [9]: its penalty and the knobs of its two samplers."""
    return np.array([sampling.repetition_penalty, *sampling.first, *sampling.others])


class CodeRows:
    """What the draws of codes need of B rows.

    Attributes:
        penalty: fp32 [B, 1].
        may_stop: bool [B].
        first, others: fp32 [B, 4], the knobs of the sampler of codebook 0 and of those of the others.
        uniform: fp64 [B, D], random numbers in [0, 1).
        recent: int64 [B, R], codebook 0 of the latest frames, the newest one last; -1 where there was none yet.
    """

    def __init__(self, table: RowTable, recent: Tensor) -> None:
        self.penalty = table.sampling[:, PENALTY : PENALTY + 1]
        self.first, self.others = table.sampling[:, FIRST], table.sampling[:, OTHERS]
        self.may_stop, self.uniform, self.recent = table.may_stop, table.draws, recent


FirstCode = Callable[[Tensor, Tensor, CodeRows, Filters], tuple[Tensor, Tensor]]
"""Chooses codebook 0.

Args: logits [B, V], which may be overwritten; bool [B, V], the codes that each stream has used; the rows; what the
    samplers must do.
Returns: int64 [B], and whether all values were finite, bool [B].
"""

RECENT_CODES = 11  # that repetition-aware sampling is given: those of its window, and the one before
AGAIN_TEMPERATURE, AGAIN_TOP_P = 1.0, 0.9  # of its second draw


class TorchFirstCode:
    """In torch, on any device; reads no value. A `FirstCode`.

    Args:
        suppressed: bool [V], the codes that never come.
        end: the code of the end of speech.
    """

    def __init__(self, suppressed: npt.NDArray[np.bool_], end: int) -> None:
        self._suppressed, self._end = suppressed, end
        self._mask: Tensor | None = None  # made with the first logits, whose device it needs

    def __call__(self, logits: Tensor, used: Tensor, table: CodeRows, filters: Filters) -> tuple[Tensor, Tensor]:
        logits = penalise(logits.float(), used, table.penalty)
        finite = finite_rows(logits)
        if self._mask is None:
            self._mask = torch.from_numpy(self._suppressed).to(logits.device)
        logits = logits.masked_fill(self._mask, -torch.inf)
        logits[:, self._end].masked_fill_(~table.may_stop, -torch.inf)
        return Sampler(table.first, filters)(logits, table.uniform[:, 0]), finite


class NativeFirstCode:
    """As one call of native code; for logits in fp32 on a CPU.

    Args: as of `TorchFirstCode`.
    """

    def __init__(self, suppressed: npt.NDArray[np.bool_], end: int) -> None:
        self._suppressed, self._end = suppressed, end
        self._memory = np.zeros(len(suppressed), np.int32), np.zeros(len(suppressed), np.float32)

    def __call__(self, logits: Tensor, used: Tensor, table: CodeRows, filters: Filters) -> tuple[Tensor, Tensor]:
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


class RepetitionAwareFirstCode:
    """Repetition-aware sampling (RAS: Chen et al. 2024, VALL-E 2) as fish-speech has it, in torch. Reads no value.

    A code that is among the latest `RECENT_CODES - 1` frames' is drawn again, by fixed knobs and the last random number
    of the frame. A stream's first frame is not among them. Both draws are an `UnheatedSampler`'s.

    Args:
        end: the code of the end of speech; it is never drawn again.
    """

    def __init__(self, end: int) -> None:
        self._end = end

    def __call__(self, logits: Tensor, used: Tensor, table: CodeRows, filters: Filters) -> tuple[Tensor, Tensor]:
        logits = logits.float()
        finite = finite_rows(logits)
        logits[:, self._end].masked_fill_(~table.may_stop, -torch.inf)
        codes = UnheatedSampler(table.first, filters)(logits, table.uniform[:, 0])
        if not filters.sampled:
            return codes, finite
        again = table.first.clone()
        again[:, 1].fill_(AGAIN_TEMPERATURE)
        again[:, 3].fill_(AGAIN_TOP_P)
        others = UnheatedSampler(again, filters)(logits, table.uniform[:, -1])
        repeats = (table.recent[:, 1:] == codes[:, None]) & (table.recent[:, :-1] >= 0)
        return torch.where(repeats.any(dim=1) & (again[:, 0] != 0), others, codes), finite


class NativeRepetitionAwareFirstCode:
    """As `RepetitionAwareFirstCode`, as one call of native code; for logits in fp32 on a CPU."""

    def __init__(self, vocabulary: int, end: int) -> None:
        self._end = end
        self._memory = np.zeros(vocabulary, np.int32), np.zeros(vocabulary, np.float32)

    def __call__(self, logits: Tensor, used: Tensor, table: CodeRows, filters: Filters) -> tuple[Tensor, Tensor]:
        """Overwrites `logits`. `filters` is not needed."""
        codes, finite = np.zeros(len(logits), np.int64), np.zeros(len(logits), np.bool_)
        again = table.first.clone()
        again[:, 1], again[:, 3] = AGAIN_TEMPERATURE, AGAIN_TOP_P
        repetition_aware_codes(
            logits.numpy(),
            table.recent.contiguous().numpy(),
            self._end,
            table.may_stop.contiguous().numpy(),
            (table.first.contiguous().numpy(), again.numpy()),
            (table.uniform[:, 0].contiguous().numpy(), table.uniform[:, -1].contiguous().numpy()),
            *self._memory,
            codes,
            finite,
        )
        return torch.from_numpy(codes), torch.from_numpy(finite)
