"""The voice encoder: a 24 kHz waveform to the ids that the backbone reads. Computed in fp32."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.voxtral.config import END, SPECIAL_IDS, CodecConfig
from voice_clone.families.voxtral.networks.codec_parts import Quantizer, transformer
from voice_clone.layers.convolution import CausalConv1d
from voice_clone.layers.streaming import ChunkPass, streaming_slots
from voice_clone.layers.window_transformer import WindowLayers

PIECE = 512  # positions that a transformer reads at once: its memory grows with their square


class CodecEncoder(nn.Module):
    """Patches of the waveform, a convolution, transformers with a convolution behind each, the quantizer."""

    def __init__(self, codec: CodecConfig) -> None:
        super().__init__()
        self._patch = codec.pretransform_patch_size
        self.input_proj = CausalConv1d(
            self._patch, codec.dim, codec.patch_proj_kernel_size, bias=False, pad_mode="reflect"
        )
        back = codec.attn_sliding_window_size
        blocks: list[nn.Module] = []
        for number, (layers, kernel, stride) in enumerate(codec.encoder_blocks, start=1):
            blocks.append(transformer(codec, layers, back))
            last = number == len(codec.encoder_blocks)
            if (kernel, stride) != (1, 1) or last:
                channels = codec.latent_dim if last else codec.dim
                blocks.append(CausalConv1d(codec.dim, channels, kernel, stride, bias=False, pad_mode="replicate"))
            back //= stride
        self.encoder_blocks = nn.ModuleList(blocks)
        self.quantizer = Quantizer(codec)

    @torch.inference_mode()
    def encode(self, waveform: Tensor) -> Tensor:
        """float32 [samples], not empty -> ids int64 [frames + 1, K] on the weights' device; the last one is the end."""
        waveform = waveform.to(self.input_proj.conv.weight.device)
        patches = F.pad(waveform, (0, -len(waveform) % self._patch)).view(-1, self._patch)
        x = self.input_proj(patches.T[None])  # [1, C, T]
        for block in self.encoder_blocks:
            x = _in_pieces(block, x.transpose(1, 2)).transpose(1, 2) if isinstance(block, WindowLayers) else block(x)
        ids = self.quantizer.encode(x)[0].T + SPECIAL_IDS
        end = torch.zeros_like(ids[:1])
        end[:, 0] = END
        return torch.cat([ids, end])


def _in_pieces(network: WindowLayers, x: Tensor) -> Tensor:
    """One signal [1, T, C] -> [1, T, C]."""
    slots, done, out = streaming_slots(network), 0, []
    buffers = [module.new_state(1) for module in slots]
    for piece in torch.split(x, PIECE, dim=1):
        stream = ChunkPass(slots, buffers)
        out.append(network(piece, stream, torch.full((1,), done, device=x.device)))
        buffers, done = stream.buffers, done + piece.shape[1]
    return torch.cat(out, dim=1)
