"""The talker's prompt: ids of each chunk of a text, and the codes of a clip. Needs no torch.

The talker reads the ids of a chunk, the codes of the clip, and the frames that it must unmask. Without a clip the
frames of the first chunk take its place for all other chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voice_clone.errors import InvalidArgument
from voice_clone.families.omnivoice.config import CODEBOOKS, CODES, TalkerConfig
from voice_clone.stages.text import check_ids, check_range


@dataclass(frozen=True, eq=False)
class Prompt:
    """One speech, for the talker.

    Attributes:
        ids: int32 [sum of id_counts], the tokens before the frames, chunk after chunk.
        id_counts: int32 [n], how many of them are of each chunk.
        frames: int32 [n], those of each chunk.
        codec_codes: uint16 [T, 8], the clip; T is 0 if there is none.

    Raises:
        InvalidArgument: on construction, if a shape, a type or a value is wrong.
    """

    ids: npt.NDArray[np.int32]
    id_counts: npt.NDArray[np.int32]
    frames: npt.NDArray[np.int32]
    codec_codes: npt.NDArray[np.uint16]

    def __post_init__(self) -> None:
        for name in ("ids", "id_counts", "frames"):
            check_ids(name, getattr(self, name))
        if len(self.id_counts) != len(self.frames) or self.id_counts.min() < 1 or self.frames.min() < 1:
            raise InvalidArgument("id_counts and frames must have the same length, and each number must be above 0")
        if int(self.id_counts.sum(dtype=np.int64)) != len(self.ids):
            raise InvalidArgument(f"the sum of id_counts must be the length of ids, which is {len(self.ids)}")
        codes = self.codec_codes
        if codes.dtype != np.uint16 or codes.ndim != 2 or codes.shape[1] != CODEBOOKS or (codes >= CODES).any():
            raise InvalidArgument(f"codec_codes must be UINT16 [frames, {CODEBOOKS}] in 0..{CODES - 1}")

    def check(self, config: TalkerConfig) -> None:
        """Check all values against the checkpoint.

        Raises:
            InvalidArgument: an id is none of the checkpoint's.
        """
        check_range("ids", self.ids, config.vocab_size)

    @property
    def chunks(self) -> list[npt.NDArray[np.int32]]:
        """The ids of each chunk."""
        return np.split(self.ids, np.cumsum(self.id_counts)[:-1])

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Positions before the frames, and frames, of each chunk."""
        heard = [len(self.codec_codes) or int(self.frames[0]) * (index > 0) for index in range(len(self.frames))]
        return [
            (int(ids) + before, int(frames))
            for ids, before, frames in zip(self.id_counts, heard, self.frames, strict=True)
        ]
