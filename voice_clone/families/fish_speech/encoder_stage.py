"""A clip to the artifacts of its voice: a `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.config import CODEC, SAMPLE_RATE, FishSpeechConfig
from voice_clone.families.fish_speech.family import CARD
from voice_clone.families.fish_speech.networks.codec_encoder import CodecEncoder
from voice_clone.families.fish_speech.prompt import CODES
from voice_clone.stages.encoder import CardEncoder
from voice_clone.stages.protocols import Arrays, Limit, check_clip


class FishSpeechEncoder(CardEncoder[FishSpeechConfig]):
    """Waveform to codec codes, uint16 [frames, codebooks]."""

    card, files, file, sample_rate = CARD, Checkpoint, CODEC, SAMPLE_RATE

    @staticmethod
    def empty_network(checkpoint: Checkpoint) -> CodecEncoder:
        return CodecEncoder(checkpoint.codec)

    @property
    def width(self) -> int:
        return self.config.codebooks

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """Codes of the largest codebook; the talker checks each codebook's own limit."""
        return {CODES: Limit(max(self.config.code_limits), (1, self.max_frames))}

    def artifacts(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        codes = self.frames(waveform).astype(np.uint16)
        check_clip(len(codes), self.max_frames)
        return {CODES: codes}


load_encoder = FishSpeechEncoder.load
