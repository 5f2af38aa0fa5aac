"""A clip to the artifacts of its voice: a `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.families.voxtral.checkpoint import CODEC, Checkpoint
from voice_clone.families.voxtral.codec import CodecEncoder
from voice_clone.families.voxtral.config import MODEL, NO_ENCODER, VoxtralConfig
from voice_clone.families.voxtral.family import CARD
from voice_clone.families.voxtral.text import CODES
from voice_clone.settings import EncoderSettings, Settings
from voice_clone.stages.encoder import CardEncoder
from voice_clone.stages.protocols import Arrays, Call, Limit, check_clip


class VoxtralEncoder(CardEncoder[VoxtralConfig]):
    """Waveform to ids of codes, uint16 [frames + 1, codebooks]; the last row is the end of the clip."""

    card, files, file, prefix = CARD, Checkpoint, MODEL, CODEC

    def __init__(self, network: Any, config: VoxtralConfig, fingerprint: str, max_frames: int) -> None:
        super().__init__(network, config, fingerprint, max_frames)
        self.presets = config.presets
        if network is None:
            self.modes = dict.fromkeys(CARD.modes, NO_ENCODER)

    @property
    def sample_rate(self) -> int:
        return self.config.codec.sampling_rate

    @property
    def width(self) -> int:
        return self.config.codebooks

    @staticmethod
    def empty_network(checkpoint: Checkpoint) -> CodecEncoder:
        return CodecEncoder(checkpoint.config.codec)

    @classmethod
    def load(cls, given: Settings, call: Call | None = None) -> VoxtralEncoder:
        settings = EncoderSettings.of(given)
        checkpoint = Checkpoint(settings.checkpoint_dir)
        if checkpoint.has_encoder:
            return super().load(given, call)
        return cls(None, checkpoint.config, "none", settings.max_chunk_frames)

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """Ids of the largest codebook; the talker checks each codebook's own limit."""
        return {CODES: Limit(max(self.config.id_limits), (2, self.max_frames + 1))}

    def artifacts(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        ids = self.frames(waveform).astype(np.uint16)
        check_clip(len(ids) - 1, self.max_frames)
        return {CODES: ids}


load_encoder = VoxtralEncoder.load
