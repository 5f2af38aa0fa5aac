"""The head of a talker of codec codes: codebook 0 from the hidden state, the others from it by a code predictor.

Codebook 0 has a penalty, suppressed codes, an end of speech and a sampler; or repetition-aware sampling.

Shapes: B frames, K codebooks, C the predictor's hidden size, H the talker's hidden size, V vocabulary of a codebook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.autoregressive.frame_head import Batch, MadeFrames, RowTable
from voice_clone.autoregressive.philox import Draws
from voice_clone.autoregressive.sampling import (
    GRAPH_VARIANTS,
    WHOLE,
    CodeSampling,
    Draw,
    FilterFirstSampler,
    Filters,
    Sampler,
    finite_rows,
    penalise,
)
from voice_clone.autoregressive.stack.kv_cache import KVCache
from voice_clone.autoregressive.stack.protocol import PredictorStack
from voice_clone.batching.source import PayloadForm
from voice_clone.native.transformer.draw import first_codes, repetition_aware_codes

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


@dataclass(frozen=True)
class RepetitionRule:
    """Repetition-aware sampling (RAS: Chen et al. 2024, VALL-E 2): a code that is among the latest ones is drawn again.

    Attributes:
        sampler: of both draws.
        window: of how many frames the codes are the latest ones.
        first_frame: whether a stream's first frame may be among them.
        exclude: whether the second draw is without the code of the first one.
        temperature, top_k, top_p: of the second draw; None: the stream's own.
    """

    sampler: type[FilterFirstSampler]
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

    def again(self, first: Tensor) -> Tensor:
        """The options of the second draw, fp32 [B, 4], of those of the first one."""
        options = first.clone()
        for column, value in enumerate((self.temperature, self.top_k, self.top_p), start=1):
            if value is not None:
                options[:, column].fill_(value)
        return options


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
        codes = rule.sampler(table.first, filters)(logits, table.uniform[:, 0])
        if filters.sampled:
            repeats = table.recent[:, -rule.window :] == codes[:, None]
            if not rule.first_frame:
                repeats &= table.recent[:, :-1] >= 0
            rest = logits.scatter(1, codes[:, None], -torch.inf) if rule.exclude else logits
            again = rule.again(table.first)
            # A draw among all codes needs no sort.
            second = Sampler(again, WHOLE) if (rule.top_k, rule.top_p) == (0, 1) else rule.sampler(again, filters)
            others = second(rest, table.uniform[:, -1])
            codes = torch.where(repeats.any(dim=1) & (again[:, 0] != 0), others, codes)
        return codes.clamp(max=self._end), finite


class NativeRepetitionAwareFirstCode:
    """As `RepetitionAwareFirstCode`, as one call of native code; for logits in fp32 on a CPU."""

    def __init__(self, vocabulary: int, end: int, rule: RepetitionRule) -> None:
        self._end, self._rule = end, rule
        self._memory = np.zeros(vocabulary, np.int32), np.zeros(vocabulary, np.float32)

    def __call__(self, logits: Tensor, used: Tensor, table: CodeRows, filters: Filters) -> tuple[Tensor, Tensor]:
        """Overwrites `logits`. `filters` is not needed."""
        codes, finite = np.zeros(len(logits), np.int64), np.zeros(len(logits), np.bool_)
        rule = self._rule
        repetition_aware_codes(
            logits.numpy(),
            table.recent.contiguous().numpy(),
            (rule.first_frame, rule.exclude, rule.sampler.crossing),
            self._end,
            table.may_stop.contiguous().numpy(),
            (table.first.contiguous().numpy(), rule.again(table.first).numpy()),
            (table.uniform[:, 0].contiguous().numpy(), table.uniform[:, -1].contiguous().numpy()),
            *self._memory,
            codes,
            finite,
        )
        return torch.from_numpy(codes), torch.from_numpy(finite)


Choose = Callable[[Tensor, int], Tensor]
"""(logits [B, V], codebook index) -> codes int64 [B]."""


class PredictorParts(Protocol):
    """A code predictor by its parts: a small transformer over K positions."""

    @property
    def stack(self) -> PredictorStack:
        """Its decoder layers."""

    @property
    def codebooks(self) -> int:
        """K."""

    def project(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., C]."""

    def logits(self, hidden: Tensor, book: int) -> Tensor:
        """[B, C] -> [B, V] of codebook `book`, 1..K-1."""

    def embed(self, codes: Tensor, book: int = 1) -> Tensor:
        """Codes of codebook `book` and the following ones, int64 [B, N] -> [B, N, H]."""


@torch.inference_mode()
def complete_by_steps(
    parts: PredictorParts, cache: KVCache, hidden: Tensor, code0: Tensor, embed0: Tensor, choose: Choose
) -> Tensor:
    """Complete one frame of each of B streams, codebook by codebook.

    Args:
        cache: of `frame_cache(parts, slots)`, slots >= B.
        hidden: [B, H], the talker's hidden state from which code 0 was chosen.
        code0: int64 [B].
        embed0: [B, H], code 0 embedded by the talker.
        choose: picks each stream's code from its logits; called with codebook index 1, 2, ..., K - 1.

    Returns:
        int64 [B, K], code 0 first.
    """
    codes = [code0]
    x = torch.stack([hidden, embed0], dim=1)  # [B, 2, H]
    start = 0
    for book in range(1, parts.codebooks):
        out = parts.stack.extend(cache, parts.project(x), start)
        codes.append(choose(parts.logits(out, book), book))
        start += x.shape[1]
        if book < parts.codebooks - 1:
            x = parts.embed(codes[-1][:, None], book)  # [B, 1, H]
    return torch.stack(codes, dim=1)


def frame_cache(parts: PredictorParts, slots: int) -> KVCache:
    """A cache for up to `slots` frames at once. A frame overwrites what it reads, so it serves all frames."""
    # The last code is never fed back, so K codes need K positions: the hidden state and codes 0..K-2.
    return parts.stack.new_frame_cache(slots, parts.codebooks)


class CodePredictor(Protocol):
    """Completes frames: the codes of codebooks 1..K-1."""

    def new_memory(self, slots: int) -> KVCache | None:
        """Memory of `complete` for up to `slots` frames at once; None if it needs none."""

    def complete(self, cache: KVCache | None, hidden: Tensor, code0: Tensor, embed0: Tensor, draw: Draw) -> Tensor:
        """Complete one frame of each of B streams.

        Args:
            cache: of `new_memory`.
            hidden: [B, H], from which code 0 was chosen.
            code0: int64 [B].
            embed0: [B, H], its embedding.
            draw: chooses the others.

        Returns:
            int64 [B, K], code 0 first.
        """


class PredictorByStep:
    """A `CodePredictor` of parts, in torch: codebook by codebook."""

    def new_memory(self: PredictorParts, slots: int) -> KVCache:
        """As of `CodePredictor`."""
        return frame_cache(self, slots)

    def complete(
        self: PredictorParts, cache: KVCache | None, hidden: Tensor, code0: Tensor, embed0: Tensor, draw: Draw
    ) -> Tensor:
        """As of `CodePredictor`."""
        assert cache is not None
        return complete_by_steps(self, cache, hidden, code0, embed0, draw)


@dataclass(frozen=True)
class CodeVariant:
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

    def __init__(self, used: Tensor, history: Tensor, window: Tensor, cache: KVCache | None) -> None:
        self.used, self.history, self.window, self.cache = used, history, window, cache
        self.by_slot = (used, history)

    @property
    def nbytes(self) -> int:
        """Bytes of the predictor's key-value memory."""
        return 0 if self.cache is None else self.cache.nbytes


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
        rule: the sampler of the other codebooks.
        graph_variants: the filters that steps of fixed shapes are recorded for.
        recent: R, on how many of the latest codes of codebook 0 the draw of the next one depends.
        draws: random numbers of a frame; None: K.
    """

    dtype = torch.int64
    neutral = NEUTRAL
    keeps_ending_frame = False

    def __init__(
        self,
        *,
        end_code: int,
        vocabulary: int,
        logits: Callable[[Tensor], Tensor],
        first: FirstCode,
        predictor: CodePredictor | None = None,
        embed: Callable[[Tensor], Tensor] | None = None,
        codebooks: int = 1,
        rule: type[Sampler] = Sampler,
        graph_variants: Sequence[Filters] = GRAPH_VARIANTS,
        recent: int = 0,
        draws: int | None = None,
    ) -> None:
        self.form = PayloadForm(codebooks)
        self.draws = codebooks if draws is None else draws
        self.variants = tuple(CodeVariant(filters, filters) for filters in graph_variants)
        self.end_code, self.vocabulary = end_code, vocabulary
        self.logits, self.first, self.predictor = logits, first, predictor
        self.embed, self._rule, self._recent = embed, rule, recent

    def columns(self, sampling: CodeSampling) -> npt.NDArray[np.float64]:
        """As of `FrameHead`, fp64 [9]: the penalty and the options of both samplers."""
        return np.array([sampling.repetition_penalty, *sampling.first, *sampling.others])

    def new_draws(self, seed: int) -> Draws:
        """As of `FrameHead`."""
        return Draws(seed, self.draws)

    def variant_of(self, columns: npt.NDArray[np.float64]) -> CodeVariant:
        """As of `FrameHead`."""
        return CodeVariant(Filters.of(columns[:, FIRST]), Filters.of(columns[:, OTHERS]))

    def new_memory(self, slots: int, max_length: int, device: torch.device) -> CodeMemory:
        """As of `FrameHead`."""
        used = torch.zeros(slots, self.vocabulary, dtype=torch.bool, device=device)
        # One place more than positions: rows that do not move write there.
        size = self._recent + max_length + 1 if self._recent else 0
        history = torch.full((slots, size), -1, dtype=torch.int64, device=device)
        window = torch.arange(self._recent, device=device)
        cache = None if self.predictor is None else self.predictor.new_memory(slots)
        return CodeMemory(used, history, window, cache)

    def clear(self, memory: CodeMemory, slot: int) -> None:
        """As of `FrameHead`. The history needs nothing: a stream looks at what it has written itself."""
        memory.used[slot] = False

    def read(self, memory: CodeMemory, batch: Batch, payload: Tensor) -> None:
        """As of `FrameHead`."""
        table, code0 = batch.table, payload[:, 0]
        memory.used[batch.slots, code0] |= table.moves
        if self._recent:
            place = torch.where(table.moves, table.frame - 1 + self._recent, memory.history.shape[1] - 1)
            memory.history[batch.slots, place] = code0

    def make(self, memory: CodeMemory, hidden: Tensor, batch: Batch, variant: CodeVariant) -> MadeFrames:
        """As of `FrameHead`."""
        table = batch.table
        recent = memory.window
        if self._recent:
            recent = memory.history[batch.slots[:, None], table.frame[:, None] + recent]
        rows = CodeRows(table, recent)
        code0, finite = self.first(self.logits(hidden), batch.of(memory.used), rows, variant.first)
        ended = code0 == self.end_code
        if self.predictor is None:
            return MadeFrames(code0[:, None], ended, finite)
        going = None if batch.fixed or hidden.device.type != "cpu" else torch.nonzero(~ended)[:, 0]
        if going is None or len(going) == len(code0):
            codes, fine = self._complete(memory, hidden, code0, rows.others, rows.uniform, variant)
            return MadeFrames(codes, ended, finite & (fine | ended))
        # On a CPU the rows that have just ended are left out. On a GPU the host would have to wait for the codes.
        codes = torch.zeros(len(code0), self.form.width, dtype=torch.int64)
        codes[:, 0] = code0
        if len(going):
            some = (hidden[going], code0[going], rows.others[going], rows.uniform[going])
            codes[going], fine = self._complete(memory, *some, variant)
            finite[going] &= fine
        return MadeFrames(codes, ended, finite)

    def _complete(
        self, memory: CodeMemory, hidden: Tensor, code0: Tensor, others: Tensor, uniform: Tensor, variant: CodeVariant
    ) -> tuple[Tensor, Tensor]:
        """Codes int64 [B, K], and whether the logits of codebooks 1..K-1 were finite, bool [B]."""
        assert self.predictor is not None and self.embed is not None
        draw = Draw(others, variant.others, uniform, self._rule)
        codes = self.predictor.complete(memory.cache, hidden, code0, self.embed(code0), draw)
        return codes, draw.finite
