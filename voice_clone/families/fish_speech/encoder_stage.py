"""A clip to the artifacts of its voice: a `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.config import CODEC, SAMPLE_RATE
from voice_clone.families.fish_speech.family import CARD
from voice_clone.families.fish_speech.networks.codec_encoder import CodecEncoder
from voice_clone.families.fish_speech.prompt import CODES
from voice_clone.settings import EncoderSettings, Settings
from voice_clone.stages.loading import empty, load_encoder_network
from voice_clone.stages.protocols import Arrays, Call, Limit, check_clip


class FishSpeechEncoder:
    """Waveform to codec codes, uint16 [frames, codebooks].

    Args:
        code_limits: of each codebook.
        max_frames: of a clip.
    """

    sample_rate = SAMPLE_RATE
    modes = CARD.modes
    presets = ()

    def __init__(self, encoder: CodecEncoder, code_limits: tuple[int, ...], fingerprint: str, max_frames: int) -> None:
        self._encoder = encoder
        self._code_limits = code_limits
        self._max_frames = max_frames
        self.fingerprints = {"fingerprint": fingerprint}

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """Codes of the largest codebook; the talker checks each codebook's own limit."""
        return {CODES: Limit(max(self._code_limits), (1, self._max_frames))}

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """The codes of a clip."""
        if waveform.size == 0:
            return {CODES: np.zeros((0, len(self._code_limits)), np.uint16)}
        codes = self._encoder.encode(torch.from_numpy(waveform)).cpu().numpy().astype(np.uint16)
        check_clip(len(codes), self._max_frames)
        return {CODES: codes}


def load_encoder(given: Settings, call: Call | None = None) -> FishSpeechEncoder:
    """As the settings ask for it."""
    settings = EncoderSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    encoder = empty(lambda: CodecEncoder(checkpoint.codec))
    fingerprint = checkpoint.codec_fingerprint(encoder)
    loaded = load_encoder_network(settings, encoder, checkpoint, CODEC, "")
    return FishSpeechEncoder(loaded, checkpoint.config.code_limits, fingerprint, settings.max_chunk_frames)
