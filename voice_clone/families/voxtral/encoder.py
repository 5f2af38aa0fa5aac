"""A clip to the artifacts of its voice: a `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voice_clone.families.voxtral.checkpoint import CODEC, Checkpoint
from voice_clone.families.voxtral.codec_networks import CodecEncoder
from voice_clone.families.voxtral.config import MODEL, NO_ENCODER, VoxtralConfig, has_encoder
from voice_clone.families.voxtral.family import CARD
from voice_clone.stages.encoder import CardEncoder


class VoxtralEncoder(CardEncoder[VoxtralConfig]):
    """Waveform to ids of codes, uint16 [frames + 1, codebooks]; the last row is the end of the clip."""

    card, files, file, prefix, more_rows = CARD, Checkpoint, MODEL, CODEC, 1

    def __init__(self, network: Any, config: VoxtralConfig, fingerprint: str, max_frames: int) -> None:
        super().__init__(network, config, fingerprint, max_frames)
        self.presets = config.presets

    @property
    def sample_rate(self) -> int:
        return self.config.codec.sampling_rate

    @property
    def width(self) -> int:
        return self.config.codebooks

    @property
    def code_limits(self) -> tuple[int, ...]:
        return self.config.id_limits

    @staticmethod
    def empty_network(checkpoint: Checkpoint) -> CodecEncoder:
        return CodecEncoder(checkpoint.config.codec)

    @classmethod
    def identity(cls, config: VoxtralConfig) -> dict[str, Any]:
        codec = config.codec
        return {
            **super().identity(config),
            "eps": [codec.norm_eps, codec.qk_norm_eps],
            "blocks": codec.encoder_blocks,
            "window": codec.attn_sliding_window_size,
        }

    @staticmethod
    def shortcoming(folder: Path, /) -> str:
        return "" if has_encoder(folder) else NO_ENCODER


load_encoder = VoxtralEncoder.load
