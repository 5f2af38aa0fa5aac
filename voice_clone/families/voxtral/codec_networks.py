"""The codec in torch: a clip to codes, and codes to audio. Native code for a CPU is in codec.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.codec.windowed_decoder import StreamingDecoder
from voice_clone.families.voxtral.config import END, SPECIAL_IDS, CodecConfig
from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.streaming import ChunkPass
from voice_clone.layers.window_transformer import WindowConfig, WindowLayers

PIECE = 512  # positions that a transformer reads at once: its memory grows with their square


def transformer(codec: CodecConfig, layers: int, back: int) -> WindowLayers:
    """Layers whose positions see themselves and the `back` positions before them."""
    return WindowLayers(
        WindowConfig(
            hidden_size=codec.dim,
            intermediate_size=codec.hidden_dim,
            num_hidden_layers=layers,
            num_attention_heads=codec.n_heads,
            num_key_value_heads=codec.n_kv_heads,
            head_dim=codec.head_dim,
            sliding_window=back + 1,
            rms_norm_eps=codec.norm_eps,
            rope_theta=0.0,
            alibi=True,
            qk_norm_eps=codec.qk_norm_eps,
        )
    )


class SemanticCodebook(nn.Module):
    """A vector for each code."""

    def __init__(self, codes: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(codes, dim))


class Quantizer(nn.Module):
    """A semantic code by the nearest vector, and a level for each acoustic dimension (FSQ, Mentzer et al. 2023)."""

    def __init__(self, codec: CodecConfig) -> None:
        super().__init__()
        self.semantic_codebook = SemanticCodebook(codec.semantic_codebook_size, codec.semantic_dim)
        self._levels = codec.acoustic_codebook_size

    def encode(self, latent: Tensor) -> Tensor:
        """[B, latent, T] -> codes int64 [B, K, T]."""
        table = self.semantic_codebook.embedding
        semantic, acoustic = torch.split(latent, [table.shape[1], latent.shape[1] - table.shape[1]], dim=1)
        rows = semantic.transpose(1, 2)
        nearest = torch.cdist(rows.flatten(0, 1), table).argmin(dim=-1).view(len(latent), 1, -1)
        levels = (0.5 * (acoustic.tanh() + 1) * (self._levels - 1)).round().long()
        return torch.cat([nearest, levels], dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, K, T] -> [B, latent, T]."""
        table = self.semantic_codebook.embedding
        semantic = F.embedding(codes[:, 0], table).transpose(1, 2)
        acoustic = codes[:, 1:].to(table.dtype) * (2 / (self._levels - 1)) - 1
        return torch.cat([semantic, acoustic], dim=1)


class CodecEncoder(nn.Module):
    """The voice encoder: patches of the waveform, a convolution, transformers with a convolution behind each, the
    quantizer. Computed in fp32.
    """

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
            x = (
                block.in_pieces(x.transpose(1, 2), PIECE).transpose(1, 2)
                if isinstance(block, WindowLayers)
                else block(x)
            )
        ids = self.quantizer.encode(x)[0].T + SPECIAL_IDS
        end = torch.zeros_like(ids[:1])
        end[:, 0] = END
        return torch.cat([ids, end])


class CodecDecoder(StreamingDecoder):
    """code2wav: a convolution, transformers with an upsampling transposed convolution between each two, and a
    convolution to patches of the waveform.
    """

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
