"""A clip to the artifacts of its voice: a `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from voice_clone.families.voxtral.checkpoint import CODEC, Checkpoint
from voice_clone.families.voxtral.config import MODEL, NO_ENCODER, VoxtralConfig
from voice_clone.families.voxtral.family import CARD
from voice_clone.families.voxtral.networks.codec import CodecEncoder
from voice_clone.families.voxtral.prompt import CODES
from voice_clone.settings import EncoderSettings, Settings
from voice_clone.stages.loading import empty, load_encoder_network
from voice_clone.stages.protocols import Arrays, Call, Limit, check_clip


class VoxtralEncoder:
    """Waveform to ids of codes, uint16 [frames + 1, codebooks]; the last row is the end of the clip.

    Args:
        encoder: None: the checkpoint has none.
        max_frames: of a clip.
    """

    def __init__(self, encoder: CodecEncoder | None, config: VoxtralConfig, fingerprint: str, max_frames: int) -> None:
        self._encoder = encoder
        self._id_limits = config.id_limits
        self._max_frames = max_frames
        self.sample_rate = config.codec.sampling_rate
        self.fingerprints = {"fingerprint": fingerprint}
        self.presets = config.presets
        self.modes: Mapping[str, tuple[str, ...] | str] = dict(CARD.modes)
        if encoder is None:
            self.modes = dict.fromkeys(CARD.modes, NO_ENCODER)

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """Ids of the largest codebook; the talker checks each codebook's own limit."""
        return {CODES: Limit(max(self._id_limits), (2, self._max_frames + 1))}

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """The ids of a clip. Without an encoder no clip comes, but on a GPU the warm-up's."""
        if waveform.size == 0 or self._encoder is None:
            return {CODES: np.zeros((0, len(self._id_limits)), np.uint16)}
        ids = self._encoder.encode(torch.from_numpy(waveform)).cpu().numpy().astype(np.uint16)
        check_clip(len(ids) - 1, self._max_frames)
        return {CODES: ids}


def load_encoder(given: Settings, call: Call | None = None) -> VoxtralEncoder:
    """As the settings ask for it."""
    settings = EncoderSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    if not checkpoint.has_encoder:
        return VoxtralEncoder(None, checkpoint.config, "none", settings.max_chunk_frames)
    encoder = empty(lambda: CodecEncoder(checkpoint.config.codec))
    fingerprint = checkpoint.encoder_fingerprint(encoder)
    loaded = load_encoder_network(settings, encoder, checkpoint, MODEL, CODEC)
    return VoxtralEncoder(loaded, checkpoint.config, fingerprint, settings.max_chunk_frames)
