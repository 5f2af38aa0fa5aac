"""What the talker is asked to say, in whose voice: ids of tokens, and a preset or the clip's ids. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voice_clone.errors import InvalidArgument
from voice_clone.families.voxtral.config import VoxtralConfig
from voice_clone.stages.text import check_ids, check_range

CODES = "codec_codes"  # the artifact of the voice encoder
NO_PRESET = -1


@dataclass(frozen=True, eq=False)
class Prompt:
    """One synthesis request for the talker.

    Attributes:
        before_voice: int32 [m], the tokens before the voice.
        text_ids: int32 [n], the tokens behind it: the text and its marks.
        preset: int32 [1], one of the checkpoint's own voices by its place in `VoxtralConfig.presets`, or `NO_PRESET`.
        codec_codes: uint16 [frames, codebooks], a clip as ids, the frame that ends it among them; 0 frames with a
            preset.

    Raises:
        InvalidArgument: on construction, if a shape or a type is wrong.
    """

    before_voice: npt.NDArray[np.int32]
    text_ids: npt.NDArray[np.int32]
    preset: npt.NDArray[np.int32]
    codec_codes: npt.NDArray[np.uint16]

    def __post_init__(self) -> None:
        check_ids("before_voice", self.before_voice)
        check_ids("text_ids", self.text_ids)
        if self.preset.dtype != np.int32 or self.preset.shape != (1,):
            raise InvalidArgument("preset must be INT32 [1]")
        if self.codec_codes.dtype != np.uint16 or self.codec_codes.ndim != 2:
            raise InvalidArgument(f"{CODES} must be UINT16 of 2 dimensions")
        if (int(self.preset[0]) == NO_PRESET) != bool(len(self.codec_codes)):
            raise InvalidArgument(f"a prompt has either a preset or {CODES}")

    def check(self, config: VoxtralConfig) -> None:
        """Check all values against the checkpoint.

        Raises:
            InvalidArgument: an id is none of the checkpoint's.
        """
        check_range("before_voice", self.before_voice, config.vocab_size)
        check_range("text_ids", self.text_ids, config.vocab_size)
        if not NO_PRESET <= int(self.preset[0]) < len(config.presets):
            raise InvalidArgument(f"preset must lie in {NO_PRESET}..{len(config.presets) - 1}")
        if not len(self.codec_codes):
            return
        limits = np.array(config.id_limits)
        if self.codec_codes.shape[1] != len(limits):
            raise InvalidArgument(f"{CODES} has {self.codec_codes.shape[1]} codebooks; expected {len(limits)}")
        if (self.codec_codes >= limits).any():
            raise InvalidArgument(f"{CODES} must lie in 0..{limits.min() - 1} or more, by codebook")
