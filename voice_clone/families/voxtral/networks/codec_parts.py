"""What the encoder and the decoder of the codec share: transformers with ALiBi over a window, and the codebooks.

Source: vllm-omni 0.30.0, `voxtral_tts_audio_tokenizer.py`. Shapes: B signals, T steps, K codebooks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.voxtral.config import CodecConfig
from voice_clone.layers.window_transformer import WindowConfig, WindowLayers


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
