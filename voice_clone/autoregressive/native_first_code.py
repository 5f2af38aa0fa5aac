"""The draw of codebook 0 as one call of native code; for logits in fp32 on a CPU."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, array_of, in_kind_of
from voice_clone.autoregressive.code_head import CodeRows
from voice_clone.autoregressive.repetition_rule import RepetitionRule
from voice_clone.autoregressive.sampling import Filters
from voice_clone.native.arrays import Array
from voice_clone.native.kernel import Kernel

first_codes = Kernel("transformer.draw.first_codes")
repetition_aware_codes = Kernel("transformer.draw.repetition_aware_codes")


class NativeFirstCode:
    """As `TorchFirstCode`; a `FirstCode`.

    Args: as of `TorchFirstCode`.
    """

    def __init__(self, suppressed: npt.NDArray[np.bool_], end: int) -> None:
        self._suppressed, self._end = suppressed, end
        self._memory = np.zeros(len(suppressed), np.int32), np.zeros(len(suppressed), np.float32)

    def __call__(self, logits: Numbers, used: Numbers, table: CodeRows, filters: Filters) -> tuple[Numbers, Numbers]:
        """Overwrites `logits`. `filters` is not needed."""
        codes, finite = np.zeros(len(logits), np.int64), np.zeros(len(logits), np.bool_)
        first_codes(
            array_of(logits),
            contiguous(used),
            contiguous(table.penalty).reshape(-1),
            self._suppressed,
            self._end,
            contiguous(table.may_stop),
            contiguous(table.first),
            contiguous(table.uniform[:, 0]),
            *self._memory,
            codes,
            finite,
        )
        return in_kind_of(logits, codes), in_kind_of(logits, finite)


class NativeRepetitionAwareFirstCode:
    """As `RepetitionAwareFirstCode`."""

    def __init__(self, vocabulary: int, end: int, rule: RepetitionRule) -> None:
        self._end, self._rule = end, rule
        self._memory = np.zeros(vocabulary, np.int32), np.zeros(vocabulary, np.float32)

    def __call__(self, logits: Numbers, used: Numbers, table: CodeRows, filters: Filters) -> tuple[Numbers, Numbers]:
        """Overwrites `logits`. `filters` is not needed."""
        codes, finite = np.zeros(len(logits), np.int64), np.zeros(len(logits), np.bool_)
        rule = self._rule
        repetition_aware_codes(
            array_of(logits),
            contiguous(table.recent),
            (rule.first_frame, rule.exclude, rule.kind.crossing),
            self._end,
            contiguous(table.may_stop),
            (contiguous(table.first), array_of(rule.again(table.first))),
            (contiguous(table.uniform[:, 0]), contiguous(table.uniform[:, -1])),
            *self._memory,
            codes,
            finite,
        )
        return in_kind_of(logits, codes), in_kind_of(logits, finite)


def contiguous(x: Numbers) -> Array:
    """The array of x, whose numbers lie one after the other."""
    return np.ascontiguousarray(array_of(x))
