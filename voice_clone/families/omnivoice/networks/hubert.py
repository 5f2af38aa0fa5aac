"""HuBERT (Hsu et al. 2021), of which the codec takes the mean of all layers' hidden states.

Names are those of transformers' `HubertModel` with group norm and with norms after the residual sums, as in the base
model.

Shapes: B signals, T steps of 20 ms, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.families.omnivoice.codec_config import SemanticConfig


class FeatureLayer(nn.Module):
    """A convolution of the waveform's features; the first one normalises each channel over time."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int, norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, width, kernel, stride, bias=False)
        self.layer_norm = nn.GroupNorm(width, width) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.layer_norm(self.conv(x)))


class FeatureExtractor(nn.Module):
    """Waveform [B, samples] -> [B, C, T]."""

    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        sizes = [1, *config.conv_dim]
        self.conv_layers = nn.ModuleList(
            FeatureLayer(sizes[place], sizes[place + 1], kernel, stride, norm=place == 0)
            for place, (kernel, stride) in enumerate(zip(config.conv_kernel, config.conv_stride, strict=True))
        )

    def forward(self, waveform: Tensor) -> Tensor:
        x = waveform[:, None]
        for layer in self.conv_layers:
            x = layer(x)
        return x


class FeatureProjection(nn.Module):
    """[B, T, features] -> [B, T, hidden_size]."""

    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(config.conv_dim[-1], eps=config.layer_norm_eps)
        self.projection = nn.Linear(config.conv_dim[-1], config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.projection(self.layer_norm(x))
        return projected


class Positions(nn.Module):
    """What is added for the place of a step: a wide convolution. [B, T, C] -> the same."""

    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        self._kernel = config.num_conv_pos_embeddings
        self.conv = nn.Conv1d(
            config.hidden_size,
            config.hidden_size,
            self._kernel,
            padding=self._kernel // 2,
            groups=config.num_conv_pos_embedding_groups,
        )

    def forward(self, x: Tensor) -> Tensor:
        convolved = self.conv(x.transpose(1, 2))[..., : x.shape[1]]  # an even kernel makes a step too many
        return F.gelu(convolved).transpose(1, 2)


class Attention(nn.Module):
    """Every step sees all steps."""

    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self._heads = config.num_attention_heads
        self.k_proj, self.v_proj = nn.Linear(size, size), nn.Linear(size, size)
        self.q_proj, self.out_proj = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self._heads, -1)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out_proj(seen.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        self.intermediate_dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output_dense = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output_dense(F.gelu(self.intermediate_dense(x)))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each with a norm behind its residual sum."""

    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer_norm(x + self.attention(x))
        normed: Tensor = self.final_layer_norm(x + self.feed_forward(x))
        return normed


class Encoder(nn.Module):
    """[B, T, C] -> the hidden states before the first layer and after each."""

    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        self.pos_conv_embed = Positions(config)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor) -> list[Tensor]:
        states = [self.layer_norm(x + self.pos_conv_embed(x))]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states


class SemanticModel(nn.Module):
    """Waveform [B, samples] at 16 kHz -> the mean of all hidden states [B, T, hidden_size]."""

    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        self.feature_extractor = FeatureExtractor(config)
        self.feature_projection = FeatureProjection(config)
        self.encoder = Encoder(config)

    def forward(self, waveform: Tensor) -> Tensor:
        features = self.feature_projection(self.feature_extractor(waveform).transpose(1, 2))
        return torch.stack(self.encoder(features), dim=1).mean(dim=1)
