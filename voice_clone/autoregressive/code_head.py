"""The head of a talker of codec codes: codebook 0 from the hidden state, the others from it by a code predictor.

Codebook 0 has a penalty, suppressed codes, an end of speech and a sampler; or repetition-aware sampling.

Shapes: B frames, K codebooks, C the predictor's hidden size, H the talker's hidden size, V vocabulary of a codebook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from voice_clone.array_kinds import Numbers, in_kind_of, namespace, on_gpu, places_of, zeros
from voice_clone.autoregressive.frame_head import Batch, MadeFrames, RowTable
from voice_clone.autoregressive.philox import Draws
from voice_clone.autoregressive.sampling import (
    FILTERS_LAST,
    GRAPH_VARIANTS,
    CodeDraws,
    CodeSampling,
    Filters,
    SamplerKind,
)
from voice_clone.batching.source import PayloadForm

PENALTY, FIRST, OTHERS, COLUMNS = 0, slice(1, 5), slice(5, 9), 9  # the sampling columns of codes
NEUTRAL = np.array([1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0])


class CodeRows:
    """What the draws of codes need of B rows.

    Attributes:
        penalty: fp32 [B, 1].
        may_stop: bool [B].
        first, others: fp32 [B, 4], the options of the sampler of codebook 0 and of those of the others.
        uniform: fp64 [B, D], random numbers in [0, 1).
        recent: int64 [B, R], codebook 0 of the latest frames, the newest one last; -1 where there was none yet.
    """

    def __init__(self, table: RowTable, recent: Numbers) -> None:
        self.penalty = table.sampling[:, PENALTY : PENALTY + 1]
        self.first, self.others = table.sampling[:, FIRST], table.sampling[:, OTHERS]
        self.may_stop, self.uniform, self.recent = table.may_stop, table.draws, recent


FirstCode = Callable[[Numbers, Numbers, CodeRows, Filters], tuple[Numbers, Numbers]]
"""Chooses codebook 0.

Args: logits [B, V], which may be overwritten; bool [B, V], the codes that each stream has used; the rows; what the
    samplers must do.
Returns: int64 [B], and whether all values were finite, bool [B].
"""


class CodePredictor(Protocol):
    """Completes frames: the codes of codebooks 1..K-1."""

    def new_memory(self, slots: int) -> Any:
        """Memory of `complete` for up to `slots` frames at once; None if it needs none."""

    def complete(
        self, cache: Any, hidden: Numbers, code0: Numbers, embed0: Numbers, draws: CodeDraws
    ) -> tuple[Numbers, Numbers]:
        """Complete one frame of each of B streams.

        Args:
            cache: of `new_memory`.
            hidden: [B, H], from which code 0 was chosen.
            code0: int64 [B].
            embed0: [B, H], its embedding.
            draws: how the others are drawn.

        Returns:
            int64 [B, K], code 0 first; and whether all logits were finite, bool [B].
        """


class CodeVariant(NamedTuple):
    """What the samplers of codebook 0 and of the others must do."""

    first: Filters
    others: Filters

    def covers(self, other: CodeVariant) -> bool:
        """Whether this serves every row that `other` serves."""
        return self.first.covers(other.first) and self.others.covers(other.others)


class CodeMemory:
    """What a head of codes keeps of the streams in all slots.

    Attributes:
        used: bool [slots, V], the codes that each slot's stream has used, up to the frame before the newest at least.
        history: int64 [slots, R + frames], codebook 0 of the frames before the newest at least, behind R times -1.
            Without recent codes it is empty.
        window: int64 [R], 0, 1, ...
        cache: of the code predictor; None if it needs none.
    """

    def __init__(self, used: Numbers, history: Numbers, window: Numbers, cache: Any) -> None:
        self.used, self.history, self.window, self.cache = used, history, window, cache
        self.by_slot = (used, history)

    @property
    def nbytes(self) -> int:
        taken: int = 0 if self.cache is None else self.cache.nbytes
        return taken


class CodeHead:
    """A `FrameHead` of codes; `logits`, `first` and `predictor` may be replaced by native code.

    Args:
        end_code: the code of codebook 0 that ends a stream, and with it no frame comes.
        vocabulary: V of codebook 0.
        logits: hidden states [B, C] -> logits of codebook 0, [B, V].
        first: chooses codebook 0.
        predictor: makes the other codebooks; None: there is one codebook.
        embed: codes of codebook 0, int64 [B] -> [B, H], as the predictor takes them; they may be `end_code`.
        codebooks: K.
        kind: of the sampler of the other codebooks.
        graph_variants: the filters that steps of fixed shapes are recorded for.
        recent: R, on how many of the latest codes of codebook 0 the draw of the next one depends.
        draws: random numbers of a frame; None: K.
    """

    dtype = np.int64
    neutral = NEUTRAL
    keeps_ending_frame = False

    def __init__(
        self,
        *,
        end_code: int,
        vocabulary: int,
        logits: Callable[[Numbers], Numbers],
        first: FirstCode,
        predictor: CodePredictor | None = None,
        embed: Callable[[Numbers], Numbers] | None = None,
        codebooks: int = 1,
        kind: SamplerKind = FILTERS_LAST,
        graph_variants: Sequence[Filters] = GRAPH_VARIANTS,
        recent: int = 0,
        draws: int | None = None,
    ) -> None:
        self.form = PayloadForm(codebooks)
        self.draws = codebooks if draws is None else draws
        self.variants = tuple(CodeVariant(filters, filters) for filters in graph_variants)
        self.end_code, self.vocabulary = end_code, vocabulary
        self.logits, self.first, self.predictor = logits, first, predictor
        self.embed, self._kind, self._recent = embed, kind, recent

    def columns(self, sampling: CodeSampling) -> npt.NDArray[np.float64]:
        return sampling.columns

    def new_draws(self, seed: int) -> Draws:
        return Draws(seed, self.draws)

    def variant_of(self, columns: npt.NDArray[np.float64]) -> CodeVariant:
        return CodeVariant(Filters.of(columns[:, FIRST]), Filters.of(columns[:, OTHERS]))

    def new_memory(self, slots: int, max_length: int, like: Numbers) -> CodeMemory:
        used = zeros((slots, self.vocabulary), like, np.bool_)
        # One place more than positions: rows that do not move write there.
        size = self._recent + max_length + 1 if self._recent else 0
        history = zeros((slots, size), like, np.int64) - 1
        window = in_kind_of(like, np.arange(self._recent))
        cache = None if self.predictor is None else self.predictor.new_memory(slots)
        return CodeMemory(used, history, window, cache)

    def clear(self, memory: CodeMemory, slot: int) -> None:
        """As of `FrameHead`. The history needs nothing: a stream looks at what it has written itself."""
        memory.used[slot] = False

    def read(self, memory: CodeMemory, batch: Batch, payload: Numbers) -> None:
        table, code0 = batch.table, payload[:, 0]
        memory.used[batch.slots, code0] |= table.moves
        if self._recent:
            place = namespace(code0).where(table.moves, table.frame - 1 + self._recent, memory.history.shape[1] - 1)
            memory.history[batch.slots, place] = code0

    def make(self, memory: CodeMemory, hidden: Numbers, batch: Batch, variant: CodeVariant) -> MadeFrames:
        table = batch.table
        recent = memory.window
        if self._recent:
            recent = memory.history[batch.slots[:, None], table.frame[:, None] + recent]
        rows = CodeRows(table, recent)
        code0, finite = self.first(self.logits(hidden), batch.of(memory.used), rows, variant.first)
        ended = code0 == self.end_code
        if self.predictor is None:
            return MadeFrames(code0[:, None], ended, finite)
        going = None if batch.fixed or on_gpu(hidden) else places_of(~ended)
        if going is None or len(going) == len(code0):
            codes, fine = self._complete(memory, hidden, code0, rows.others, rows.uniform, variant)
            return MadeFrames(codes, ended, finite & (fine | ended))
        # On a CPU the rows that have just ended are left out. On a GPU the host would have to wait for the codes.
        codes = zeros((len(code0), self.form.width), code0)
        codes[:, 0] = code0
        if len(going):
            some = (hidden[going], code0[going], rows.others[going], rows.uniform[going])
            codes[going], fine = self._complete(memory, *some, variant)
            finite[going] &= fine
        return MadeFrames(codes, ended, finite)

    def _complete(
        self,
        memory: CodeMemory,
        hidden: Numbers,
        code0: Numbers,
        others: Numbers,
        uniform: Numbers,
        variant: CodeVariant,
    ) -> tuple[Numbers, Numbers]:
        """Codes int64 [B, K], and whether the logits of codebooks 1..K-1 were finite, bool [B]."""
        assert self.predictor is not None and self.embed is not None
        draws = CodeDraws(others, variant.others, uniform, self._kind)
        return self.predictor.complete(memory.cache, hidden, code0, self.embed(code0), draws)
