"""What the talker is asked to say, in whose voice: tokens, and latents of clips. Needs no torch.

The prompt's positions, in their order: `REFERENCE_BEGIN`, the reference's frames and `REFERENCE_END`, if there is a
reference; the text and `TEXT_END`; the frames that the speech goes on from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voice_clone.errors import InvalidArgument
from voice_clone.families.voxcpm2.audio_vae_config import PROMPT_LATENTS, REFERENCE_LATENTS, WIDTH
from voice_clone.families.voxcpm2.config import VoxCPM2Config
from voice_clone.stages.text import check_ids, check_range


@dataclass(frozen=True, eq=False)
class Prompt:
    """One synthesis request for the talker.

    Attributes:
        text_ids: int32 [n], the tokens of the text; before them those of what `prompt_latents` say, if there are any.
        reference_latents: fp32 [R, WIDTH], a clip in the voice; 0 frames: none.
        prompt_latents: fp32 [P, WIDTH], a clip that the speech goes on from; 0 frames: it begins by itself.

    Raises:
        InvalidArgument: on construction, if a shape or a type is wrong, or a number is not finite.
    """

    text_ids: npt.NDArray[np.int32]
    reference_latents: npt.NDArray[np.float32]
    prompt_latents: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        check_ids("text_ids", self.text_ids)
        for name in (REFERENCE_LATENTS, PROMPT_LATENTS):
            latents = getattr(self, name)
            if latents.dtype != np.float32 or latents.ndim != 2 or latents.shape[1] != WIDTH:
                raise InvalidArgument(f"{name} must be FP32 [frames, {WIDTH}]")
            if not np.isfinite(latents).all():
                raise InvalidArgument(f"{name} must be finite")

    @property
    def reference_length(self) -> int:
        """Positions of the reference and its marks."""
        return len(self.reference_latents) + 2 if len(self.reference_latents) else 0

    @property
    def length(self) -> int:
        """All positions."""
        return self.reference_length + len(self.text_ids) + 1 + len(self.prompt_latents)

    def check(self, config: VoxCPM2Config) -> None:
        """Check the tokens against the checkpoint.

        Raises:
            InvalidArgument: one is none of the checkpoint's.
        """
        check_range("text_ids", self.text_ids, config.lm_config.vocab_size)
