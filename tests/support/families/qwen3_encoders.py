"""The encoders of a checkpoint of Qwen3-TTS in torch, and how far others may be from them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from voice_clone.audio import decode, resample
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.encoder import load_torch_codec_encoder, load_torch_speaker_encoder
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.settings import Settings

TOLERANCE = 1e-4  # of a difference, relative to the root mean square of what torch gives
TIE = 1e-6  # relative difference below which two distances are equal in fp32
CLIP = Path(__file__).parents[3] / "tools" / "data" / "reference.wav"


@dataclass(frozen=True)
class Loaded:
    """The torch modules of a checkpoint, on the CPU in float32, and their fingerprints."""

    config: Qwen3TTSConfig
    speaker_encoder: SpeakerEncoder
    speaker_fingerprint: str
    codec_encoder: CodecEncoder
    codec_fingerprint: str

    @staticmethod
    def of(checkpoint: Path) -> Loaded:
        settings = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint), "VOICE_CLONE_DEVICE": "cpu"})
        speaker_encoder, config, speaker_fingerprint = load_torch_speaker_encoder(settings)
        codec_encoder, _, codec_fingerprint = load_torch_codec_encoder(settings)
        return Loaded(config, speaker_encoder, speaker_fingerprint, codec_encoder, codec_fingerprint)


@torch.inference_mode()
def only_ties(encoder: CodecEncoder, clip: Tensor, actual: Tensor, expected: Tensor) -> bool:
    """Whether the first code that differs in each frame of codes [frames, K] is a tie: both vectors are equally near.

    The later codes of that frame encode another residual and cannot be compared.
    """
    exact = deepcopy(encoder).double()
    latent = exact.latent(clip[None].double())
    first = 0
    for quantizer in (
        exact.quantizer.semantic_residual_vector_quantizer,
        exact.quantizer.acoustic_residual_vector_quantizer,
    ):
        residual = quantizer.input_proj(latent).transpose(1, 2)[0]  # [frames, D]
        equal = torch.ones(len(residual), dtype=torch.bool)
        for book, codebook in enumerate(quantizer.codebooks, first):
            ours, theirs = (residual - codebook.vectors[codes[:, book]] for codes in (actual, expected))
            distance = theirs.norm(dim=-1)
            if ((ours.norm(dim=-1) - distance).abs() > TIE * distance)[equal].any():
                return False
            equal &= actual[:, book] == expected[:, book]
            residual = theirs
        first += len(quantizer.codebooks)
    return True


def speech(seconds: float, rate: int) -> Tensor:
    """The shipped clip of speech, repeated or cut to a length: float32 [T]."""
    clip = decode(CLIP.read_bytes())
    return torch.from_numpy(np.resize(resample(clip.waveform, clip.sample_rate, rate), round(seconds * rate)))
