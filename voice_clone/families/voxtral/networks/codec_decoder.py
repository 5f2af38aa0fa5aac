"""code2wav: codec codes to a 24 kHz waveform, exactly and incrementally.

A convolution, transformers with an upsampling transposed convolution between each two, and a convolution to patches of
the waveform. The first and the last convolution begin with samples of the signal itself, so the state's position says
which streams begin.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.codec.windowed_decoder import StreamingDecoder
from voice_clone.families.voxtral.config import CodecConfig
from voice_clone.families.voxtral.networks.codec_parts import Quantizer, transformer
from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.streaming import ChunkPass
from voice_clone.layers.window_transformer import WindowLayers


class CodecDecoder(StreamingDecoder):
    """Codec codes to 24 kHz speech."""

    def __init__(self, codec: CodecConfig) -> None:
        super().__init__()
        self.quantizer = Quantizer(codec)
        back = codec.attn_sliding_window_size // codec.rate
        blocks: list[nn.Module] = []
        for number, (layers, kernel, stride) in enumerate(codec.decoder_blocks):
            back *= stride
            if number == 0:
                blocks.append(CausalConv1d(codec.latent_dim, codec.dim, kernel, bias=False, pad_mode="replicate"))
            elif (kernel, stride) != (1, 1):
                blocks.append(CausalConvTranspose1d(codec.dim, codec.dim, kernel, stride, bias=False))
            blocks.append(transformer(codec, layers, back))
        self.decoder_blocks = nn.ModuleList(blocks)
        self.output_proj = CausalConv1d(
            codec.dim, codec.pretransform_patch_size, codec.patch_proj_kernel_size, bias=False, pad_mode="reflect"
        )

    @property
    def device(self) -> torch.device:
        return self.output_proj.conv.weight.device

    def samples(self, codes: Tensor, stream: ChunkPass, position: Tensor) -> Tensor:
        begins = position == 0
        x = self.quantizer.decode(codes)  # [B, C, T]
        for block in self.decoder_blocks:
            if isinstance(block, WindowLayers):
                x = block(x.transpose(1, 2), stream, position).transpose(1, 2)
            else:
                x = stream(block, x, begins)
                if isinstance(block, CausalConvTranspose1d):
                    position = position * block.conv.stride[0]
        patches = stream(self.output_proj, x, begins)  # [B, samples of a patch, T]
        return patches.transpose(1, 2).flatten(1).clamp(-1, 1)
