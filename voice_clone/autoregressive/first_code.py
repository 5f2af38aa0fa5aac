"""The draw of codebook 0 in torch, on any device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.autoregressive.code_head import CodeRows
from voice_clone.autoregressive.repetition_rule import RepetitionRule
from voice_clone.autoregressive.samplers import SAMPLERS, Sampler, finite_rows, penalise
from voice_clone.autoregressive.sampling import WHOLE, Filters


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


class RepetitionAwareFirstCode:
    """By a `RepetitionRule`, in torch. Reads no value. A `FirstCode`.

    The second draw takes the last random number of the frame. Codes from the end of speech on are never drawn again,
    because a stream ends with them.

    Args:
        end: the code of the end of speech; the codes behind it mean it, too.
    """

    def __init__(self, end: int, rule: RepetitionRule) -> None:
        self._end, self._rule = end, rule

    def __call__(self, logits: Tensor, used: Tensor, table: CodeRows, filters: Filters) -> tuple[Tensor, Tensor]:
        rule, logits = self._rule, logits.float()
        finite = finite_rows(logits)
        logits[:, self._end :].masked_fill_(~table.may_stop[:, None], -torch.inf)
        sampler = SAMPLERS[rule.kind]
        codes = sampler(table.first, filters)(logits, table.uniform[:, 0])
        if filters.sampled:
            repeats = table.recent[:, -rule.window :] == codes[:, None]
            if not rule.first_frame:
                repeats &= table.recent[:, :-1] >= 0
            rest = logits.scatter(1, codes[:, None], -torch.inf) if rule.exclude else logits
            again = rule.again(table.first)
            # A draw among all codes needs no sort.
            second = Sampler(again, WHOLE) if (rule.top_k, rule.top_p) == (0, 1) else sampler(again, filters)
            others = second(rest, table.uniform[:, -1])
            codes = torch.where(repeats.any(dim=1) & (again[:, 0] != 0), others, codes)
        return codes.clamp(max=self._end), finite
