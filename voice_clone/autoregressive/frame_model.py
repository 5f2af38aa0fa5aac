"""One frame of many streams as functions of tensors, and the memory of their slots.

Nothing here looks at a value on the device: what these functions do depends on shapes and on what the host knows, so
they run eagerly on rows of any slots as well as in a CUDA graph.

Shapes: B rows, K codebooks, C hidden size, V vocabulary of the talker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.autoregressive.native_first_code import NativeFirstCode
from voice_clone.autoregressive.sampling import Draw, Filters, Sampler, SamplingParameters, penalise, suppressed_ids
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.talker import Talker

Codes = npt.NDArray[np.int32]
Made = tuple[Codes, npt.NDArray[np.bool_]]
"""Codes int32 [B, K], and whether each row's values were finite, bool [B]."""

KNOBS = 4
MOVES, POSITION, MAY_STOP, PENALTY, FIRST_KNOBS, OTHER_KNOBS = 0, 1, 2, 3, 4, 4 + KNOBS
HEAD = OTHER_KNOBS + KNOBS  # columns before the codes


@dataclass(frozen=True, eq=False)
class Row:
    """What a step must know of one stream.

    Attributes:
        slot: where its memory is.
        knobs: fp64 [9], how it is sampled: `knobs_of`.
        uniform: fp64 [K], the draws of its next frame.
        may_stop: whether that frame may be the end of speech.
        codes: int32 [K], the newest frame; None if there is none yet.
        position: where the newest frame goes.
        text: [C], the text embedding that goes with the newest frame.
    """

    slot: int
    knobs: npt.NDArray[np.float64]
    uniform: npt.NDArray[np.float64]
    may_stop: bool
    codes: Codes | None
    position: int
    text: Tensor


def knobs_of(sampling: SamplingParameters) -> npt.NDArray[np.float64]:
    """What of a row stays the same: penalty, the knobs of the sampler of codebook 0, those of the others."""
    return np.array([sampling.repetition_penalty, *sampling.first, *sampling.others])


class RowTable:
    """What the host tells the device of B rows: one fp64 table, one transfer. fp64 holds each of its numbers exactly.

    Attributes:
        moves: bool [B], whether a row has a newest frame that the talker is to read.
        position: int64 [B].
        codes: int64 [B, K], of the newest frame.
        uniform: fp64 [B, K], the draws.
        penalty: fp32 [B, 1].
        may_stop: bool [B].
        first, others: fp32 [B, 4], the knobs of the sampler of codebook 0 and of those of the others.
    """

    def __init__(self, table: Tensor) -> None:
        """`table` is what `pack` made, on the device."""
        self._table = table
        codebooks = (table.shape[1] - HEAD) // 2
        self.moves = table[:, MOVES] != 0
        self.position = table[:, POSITION].long()
        self.codes = table[:, HEAD : HEAD + codebooks].long()
        self.uniform = table[:, HEAD + codebooks :]
        self.penalty = table[:, PENALTY : PENALTY + 1].float()
        self.may_stop = table[:, MAY_STOP] != 0
        self.first = table[:, FIRST_KNOBS:OTHER_KNOBS].float()
        self.others = table[:, OTHER_KNOBS:HEAD].float()

    def at(self, places: Tensor) -> RowTable:
        """Some of the rows; `places` is int64."""
        return RowTable(self._table[places])

    @staticmethod
    def width(config: Qwen3TTSConfig) -> int:
        return HEAD + 2 * config.talker.num_code_groups

    @staticmethod
    def pack(rows: Sequence[Row | None], config: Qwen3TTSConfig, idle_position: int) -> npt.NDArray[np.float64]:
        """[B, width]; None is a row of nobody. Rows that do not move write at `idle_position`."""
        books = config.talker.num_code_groups
        table = np.zeros((len(rows), RowTable.width(config)))
        table[:, POSITION] = idle_position
        table[:, [PENALTY, FIRST_KNOBS + 1, OTHER_KNOBS + 1]] = 1.0  # and temperatures
        for line, row in zip(table, rows, strict=True):
            if row is None:
                continue
            line[MAY_STOP] = row.may_stop
            line[PENALTY:HEAD] = row.knobs
            line[HEAD + books :] = row.uniform
            if row.codes is not None:
                line[MOVES], line[POSITION] = 1.0, row.position
                line[HEAD : HEAD + books] = row.codes
        return table

    @staticmethod
    def filters(table: npt.NDArray[np.float64]) -> tuple[Filters, Filters]:
        """What the samplers of codebook 0 and of the others need for these rows."""
        return Filters.of(table[:, FIRST_KNOBS:OTHER_KNOBS]), Filters.of(table[:, OTHER_KNOBS:HEAD])


class FrameModel:
    """Talker and code predictor with preallocated memory, on the device and in the dtype of the talker's weights.

    Attributes:
        idle_position: where rows that do not move write their keys and values: behind everybody's last position.
        cache: of the talker.
        hidden: [slots, C], the talker's state from which each slot's next frame comes.
        used: bool [slots, V], the codes that each slot's stream has used, up to the frame before the newest at least.
    """

    def __init__(
        self, talker: Talker, config: Qwen3TTSConfig, slots: int, max_length: int, idle_rows: bool = False
    ) -> None:
        """`idle_rows`: there will be rows that do not move; the cache then has a position for them."""
        self.talker = talker
        self.config = config
        self.slots = slots
        self.idle_position = max_length
        self.device = talker.device
        self.cache = talker.new_cache(slots, max_length + idle_rows)
        self.predictor_cache = talker.code_predictor.new_cache(slots)
        ids, dtype = config.talker, talker.model.norm.weight.dtype
        self.hidden = torch.zeros(slots, ids.hidden_size, dtype=dtype, device=self.device)
        self.used = torch.zeros(slots, ids.vocab_size, dtype=torch.bool, device=self.device)
        self.no_text = torch.zeros(ids.hidden_size, dtype=dtype, device=self.device)
        self._suppressed = suppressed_ids(ids, self.device)
        self._native_first: NativeFirstCode | None = None
        if talker.native is not None:
            self._native_first = NativeFirstCode(self._suppressed, ids.codec_eos_token_id)

    def advance(self, slots: Tensor, table: RowTable, text: Tensor, decode: Callable[[Tensor], Tensor]) -> None:
        """Read the newest frame of the rows that move, so that `hidden` and `used` are those of the next one.

        It depends on nothing that it changes, so it may be run again.

        Args:
            slots: int64 [B], each row's slot.
            text: [B, C], what is added to the frames' embeddings.
            decode: the talker's step for these rows, [B, C] -> [B, C].
        """
        code0 = table.codes[:, 0]
        self.used[slots, code0] |= table.moves
        hidden = decode(self.talker.embed_frames(table.codes) + text)
        self.hidden[slots] = torch.where(table.moves[:, None], hidden, self.hidden[slots])

    def first_code(self, hidden: Tensor, used: Tensor, table: RowTable, filters: Filters) -> tuple[Tensor, Tensor]:
        """Hidden states [B, C] -> codebook 0 int64 [B], and whether all was finite, bool [B]."""
        if self._native_first is not None:
            logits = self.talker.codec_head(hidden)
            how = table.penalty, table.may_stop, table.first, table.uniform[:, 0]
            return self._native_first(logits, used, *how)
        logits = penalise(self.talker.codec_head(hidden).float(), used, table.penalty)
        finite = torch.isfinite(logits).all(dim=-1)
        logits = logits.masked_fill(self._suppressed, -torch.inf)
        eos = self.config.talker.codec_eos_token_id
        logits[:, eos] = torch.where(table.may_stop, logits[:, eos], -torch.inf)
        return Sampler(table.first, filters)(logits, table.uniform[:, 0]), finite

    def other_codes(self, hidden: Tensor, code0: Tensor, table: RowTable, filters: Filters) -> tuple[Tensor, Tensor]:
        """Code predictor: hidden [B, C], code 0 int64 [B] -> codes int64 [B, K], and whether all was finite, bool [B].

        Of a row that stops with code 0 the rest counts for nothing: it is called finite.
        """
        draw = Draw(table.others, filters, table.uniform)
        embed0 = self.talker.model.codec_embedding(code0)
        codes = self.talker.code_predictor.predict(self.predictor_cache, hidden, code0, embed0, draw)
        return codes, draw.finite | (code0 == self.config.talker.codec_eos_token_id)
