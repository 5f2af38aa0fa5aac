"""Repetition-aware sampling of codebook 0: its rule, which code in torch and native code follow."""

from __future__ import annotations

from typing import NamedTuple

from voice_clone.array_kinds import Numbers, copied, fill
from voice_clone.autoregressive.sampling import SamplerKind


class RepetitionRule(NamedTuple):
    """Repetition-aware sampling (RAS: Chen et al. 2024, VALL-E 2): a code that is among the latest ones is drawn again.

    Attributes:
        kind: of the sampler of both draws, one that filters first.
        window: of how many frames the codes are the latest ones.
        first_frame: whether a stream's first frame may be among them.
        exclude: whether the second draw is without the code of the first one.
        temperature, top_k, top_p: of the second draw; None: the stream's own.
    """

    kind: SamplerKind
    window: int
    first_frame: bool
    exclude: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None

    @property
    def recent(self) -> int:
        """How many of the latest codes a draw needs: those of the window, and whether there was one before."""
        return self.window + (not self.first_frame)

    def again(self, first: Numbers) -> Numbers:
        """The options of the second draw, fp32 [B, 4], of those of the first one."""
        options = copied(first)
        for column, value in enumerate((self.temperature, self.top_k, self.top_p), start=1):
            if value is not None:
                fill(options[:, column], value)
        return options
