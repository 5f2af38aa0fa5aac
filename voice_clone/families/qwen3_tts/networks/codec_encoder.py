"""Codec encoder: waveform to codec codes. Mimi's encoder (Defossez et al. 2024) as Qwen3-TTS 12 Hz uses it.

SEANet convolutions (24 kHz -> 25 Hz), a causal transformer, a convolution to 12.5 Hz, split residual vector
quantisation. Sources: transformers 4.57.3 `modeling_mimi.py`; qwen-tts 0.1.1 `Qwen3TTSTokenizerV2Encoder`.
Module names are those of `speech_tokenizer/model.safetensors` below `encoder.`. Tensors there that encoding
does not need (codebooks past the valid ones, output projections) are not loaded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.array_kinds import Numbers
from voice_clone.families.qwen3_tts.config import CodecEncoderConfig
from voice_clone.layers.convolution import CausalConv1d
from voice_clone.layers.rvq import SplitResidualEncoder
from voice_clone.layers.seanet import SEANetEncoder
from voice_clone.layers.seanet_config import SEANetConfig
from voice_clone.layers.window_transformer import WindowConfig, WindowLayers


def seanet_config(config: CodecEncoderConfig) -> SEANetConfig:
    """The convolutions of this encoder."""
    return SEANetConfig(
        dimension=config.hidden_size,
        n_filters=config.num_filters,
        ratios=config.upsampling_ratios,
        kernel_size=config.kernel_size,
        residual_kernel_size=config.residual_kernel_size,
        last_kernel_size=config.last_kernel_size,
        n_residual_layers=config.num_residual_layers,
        dilation_base=config.dilation_growth_rate,
        compress=config.compress,
        channels=config.audio_channels,
    )


def transformer(config: CodecEncoderConfig) -> WindowLayers:
    """Over the whole clip: Mimi's sliding window of 250 is not applied by the official code."""
    return WindowLayers(
        WindowConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            sliding_window=None,
            rms_norm_eps=config.norm_eps,
            rope_theta=config.rope_theta,
            norm="layer",
            mlp="gelu",
        )
    )


class CodecEncoder(nn.Module):
    """24 kHz speech to the codes of the first `num_quantizers` codebooks."""

    def __init__(self, config: CodecEncoderConfig, num_quantizers: int) -> None:
        super().__init__()
        self.encoder = SEANetEncoder(seanet_config(config))
        self.encoder_transformer = transformer(config)
        self.downsample = CausalConv1d(  # 25 Hz -> 12.5 Hz
            config.hidden_size, config.hidden_size, kernel_size=4, stride=2, bias=False, pad_mode="replicate"
        )
        self.quantizer = SplitResidualEncoder(
            num_quantizers,
            config.num_semantic_quantizers,
            config.codebook_size,
            config.codebook_dim,
            config.hidden_size,
        )

    @torch.inference_mode()
    def encode(self, waveform: Numbers) -> Tensor:
        """Codes of one clip.

        Args:
            waveform: float [T], mono, 24 kHz, T >= 1; a frame cut short at the end counts as a whole one.

        Returns:
            int64 [ceil(T / 1920), num_quantizers], semantic codebook first.
        """
        like = self.downsample.conv.weight
        latent = self.latent(torch.as_tensor(waveform).to(like.device, like.dtype)[None])
        codes: Tensor = self.quantizer.encode(latent)  # [1, K, frames]
        return codes[0].T.contiguous()

    def latent(self, waveform: Tensor) -> Tensor:
        """What is quantised: [B, T] -> [B, C, frames]."""
        x = self.encoder(waveform[:, None])  # [B, C, 25 Hz]
        x = self.encoder_transformer.whole(x.transpose(1, 2)).transpose(1, 2)
        latent: Tensor = self.downsample(x)
        return latent
