"""A clip to the artifacts of its voice: a `voice_clone.stages.protocols.EncoderStage`.

The clip is prepared as in the official code (omnivoice 0.2.1, `create_voice_clone_prompt`): a quiet clip is made
louder, and long silences, silences at the ends, and an incomplete last frame are cut.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import Unsupported
from voice_clone.families.omnivoice.codec_checkpoint import CodecCheckpoint
from voice_clone.families.omnivoice.codec_config import FRAME_SAMPLES, SAMPLE_RATE, CodecConfig
from voice_clone.families.omnivoice.config import CODEBOOKS, CODEC, CODES, REF_RMS
from voice_clone.families.omnivoice.family import CARD
from voice_clone.families.omnivoice.finish import QUIET
from voice_clone.families.omnivoice.networks.voice_encoder import VoiceEncoder
from voice_clone.families.omnivoice.silence import remove_silence
from voice_clone.stages.encoder import CardEncoder
from voice_clone.stages.protocols import Arrays, check_clip

SILENCE = (200, 100, 200)  # milliseconds that `remove_silence` leaves of a clip: between words, before, behind


def prepare_clip(waveform: NDArray[np.float32]) -> tuple[NDArray[np.float32], np.float32]:
    """What the network hears of a clip, float32 [frames * FRAME_SAMPLES], and the clip's RMS.

    Args:
        waveform: float32 [samples] at 24 kHz, not empty.

    Raises:
        Unsupported: nothing of it is louder than -50 dB of full scale.
    """
    rms = np.sqrt(np.mean(waveform**2))
    if 0 < rms < QUIET:
        waveform = waveform * np.float32(QUIET) / rms
    heard = remove_silence(waveform, SAMPLE_RATE, *SILENCE)
    heard = heard[: len(heard) // FRAME_SAMPLES * FRAME_SAMPLES]
    if not len(heard):
        raise Unsupported("nothing is left of the clip without its silence; OmniVoice needs a clip with speech in it")
    return heard, np.float32(rms)


class OmniVoiceEncoder(CardEncoder[CodecConfig]):
    """Waveform to codes, uint16 [frames, CODEBOOKS], and the clip's RMS, float32 [1]; in torch."""

    card, files, file, sample_rate, width = CARD, CodecCheckpoint, CODEC, SAMPLE_RATE, CODEBOOKS
    code_limits = (CODES,)

    @staticmethod
    def empty_network(checkpoint: CodecCheckpoint) -> VoiceEncoder:
        return VoiceEncoder(checkpoint.config)

    @classmethod
    def identity(cls, config: CodecConfig) -> dict[str, Any]:
        return {**super().identity(config), **asdict(config)}

    def artifacts(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        heard, rms = prepare_clip(waveform)
        check_clip(len(heard) // FRAME_SAMPLES, self.max_frames)
        return {**super().artifacts(heard, mode), REF_RMS: np.array([rms], np.float32)}


load_encoder = OmniVoiceEncoder.load
