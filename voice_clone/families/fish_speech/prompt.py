"""The talker's prompt: the ids of texts and the codes of a voice. Needs no torch.

The talker reads tokens, then the frames of the reference clip, then tokens. `text.py` says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voice_clone.errors import InvalidArgument
from voice_clone.families.fish_speech.config import FishSpeechConfig
from voice_clone.speakers.record import IN_CONTEXT, ArtifactId

CODES = "codec_codes"  # the artifact of the voice encoder
ARTIFACT = ArtifactId("fish_speech", IN_CONTEXT)


@dataclass(frozen=True, eq=False)
class Prompt:
    """One synthesis request for the talker.

    Attributes:
        reference_ids: int32 [m], the tokens before the frames: instruction and transcript.
        reference_codes: uint16 [frames, codebooks], of the reference clip.
        text_ids: int32 [n], the tokens after the frames: the text, and the beginning of the answer.

    Raises:
        InvalidArgument: on construction, if a shape or a type is wrong.
    """

    reference_ids: npt.NDArray[np.int32]
    reference_codes: npt.NDArray[np.uint16]
    text_ids: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[Any, int]] = {
            "reference_ids": (np.int32, 1),
            "reference_codes": (np.uint16, 2),
            "text_ids": (np.int32, 1),
        }
        for name, (kind, dimensions) in kinds.items():
            array = getattr(self, name)
            if array.dtype != kind or array.ndim != dimensions or not len(array):
                raise InvalidArgument(
                    f"{name} must be {np.dtype(kind).name.upper()} of {dimensions} dimension(s) and not empty"
                )

    def check(self, config: FishSpeechConfig) -> None:
        """Check all values against the checkpoint.

        Raises:
            InvalidArgument: an id or a code is out of the checkpoint's range.
        """
        for name in ("reference_ids", "text_ids"):
            ids, limit = getattr(self, name), config.text_config.vocab_size
            if int(ids.min()) < 0 or int(ids.max()) >= limit:
                raise InvalidArgument(f"{name} must lie in 0..{limit - 1}")
        limits = np.array(config.code_limits)
        if self.reference_codes.shape[1] != len(limits):
            raise InvalidArgument(
                f"reference codes have {self.reference_codes.shape[1]} codebooks; expected {len(limits)}"
            )
        if (self.reference_codes >= limits).any():
            raise InvalidArgument(f"reference codes must lie in 0..{limits.min() - 1} or more, by codebook")
