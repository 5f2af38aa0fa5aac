"""code2wav: codes to a 24 kHz waveform, in windows.

A frame's samples depend on the `REACH` frames on each side of it. So a window with as many frames around those that are
wanted gives exactly their samples. Where a text begins or ends there are fewer, and the network pads with zeros.

Source: transformers 5.24.0, `modeling_higgs_audio_v2_tokenizer.py`; names are its state dict's.

Shapes: B signals, K codebooks, T frames.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.families.omnivoice.codec_config import FRAME_SAMPLES, CodecConfig
from voice_clone.families.omnivoice.networks.dac import AcousticDecoder
from voice_clone.families.omnivoice.networks.quantizer import Quantizer

REACH = 10  # frames


class CodecDecoder(nn.Module):
    """Both steps of it."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.quantizer = Quantizer(config, encodes=False)
        self.fc2 = nn.Linear(config.latent, config.acoustic_model_config.hidden_size)
        self.acoustic_decoder = AcousticDecoder(config.acoustic_model_config)

    @property
    def device(self) -> torch.device:
        return self.fc2.weight.device

    @torch.inference_mode()
    def latents(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, K, T] -> [B, hidden_size, T], each frame by itself."""
        latents: Tensor = self.fc2(self.quantizer.decode(codes).to(self.fc2.weight.dtype))
        return latents.transpose(1, 2)

    @torch.inference_mode()
    def waveform(self, latents: Tensor, before: int, after: int) -> Tensor:
        """Latents [B, hidden_size, T] of a window -> the samples [B, (T - before - after) * FRAME_SAMPLES] of its
        frames between the first `before` and the last `after`.
        """
        samples = self.acoustic_decoder(latents)[:, 0]
        end = samples.shape[1] - after * FRAME_SAMPLES
        wanted: Tensor = samples[:, before * FRAME_SAMPLES : end].float()
        return wanted

    def forward(self, codes: Tensor) -> Tensor:
        """All codes at once: int64 [B, K, T] -> waveform [B, T * FRAME_SAMPLES]."""
        return self.waveform(self.latents(codes), 0, 0)
