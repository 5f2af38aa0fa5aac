"""A transformer over a window: chunks of any size, joined, equal an attention over the whole signal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from voice_clone.layers.attention import alibi_slopes
from voice_clone.layers.streaming import ChunkPass, streaming_slots
from voice_clone.layers.window_transformer import WindowConfig, WindowLayers

ROWS = 30
CONFIG = WindowConfig(24, 32, 2, 4, 4, 6, 5, 1e-2, 10_000.0, alibi=True, qk_norm_eps=1e-6)


def transformer() -> WindowLayers:
    torch.manual_seed(0)
    made = WindowLayers(CONFIG).requires_grad_(False)
    for name, parameter in made.named_parameters():
        if "norm" in name or "scale" in name:
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def chunked(network: WindowLayers, x: Tensor, sizes: list[int]) -> Tensor:
    slots = streaming_slots(network)
    buffers, done, out = [module.new_state(len(x)) for module in slots], 0, []
    for chunk in torch.split(x, sizes, dim=1):
        stream = ChunkPass(slots, buffers)
        out.append(network(chunk, stream, torch.full((len(x),), done)))
        buffers, done = stream.buffers, done + chunk.shape[1]
    return torch.cat(out, dim=1)


def plainly(network: WindowLayers, x: Tensor) -> Tensor:
    """Written out head by head, as the papers have it (ALiBi; norms of whole queries and keys)."""
    config, places = network.config, torch.arange(x.shape[1])
    distance = places[None, :] - places[:, None]
    seen = (distance <= 0) & (distance > -config.sliding_window)
    for layer in network.layers:
        attention = layer.self_attn
        q, k, v = attention.qkv_proj(layer.input_layernorm(x)).chunk(3, dim=-1)
        q, k = (norm(part) for norm, part in ((attention.q_norm, q), (attention.k_norm, k)))
        heads = []
        for head in range(config.num_attention_heads):
            part = slice(head * config.head_dim, (head + 1) * config.head_dim)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / config.head_dim**0.5 + 4.0**-head * distance
            heads.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v[..., part])
        x = x + layer.self_attn_layer_scale(attention.o_proj(torch.cat(heads, dim=-1)))
        x = x + layer.mlp_layer_scale(layer.mlp(layer.post_attention_layernorm(x)))
    return x


@pytest.mark.parametrize("sizes", [[ROWS], [1] * ROWS, [7, 1, 22], [3] * 10], ids=str)
def test_alibi_and_whole_norms_in_chunks(sizes: list[int]) -> None:
    network, x = transformer(), torch.randn(2, ROWS, 24)
    torch.testing.assert_close(chunked(network, x, sizes), plainly(network, x), rtol=0, atol=1e-5)


def test_slopes() -> None:
    """A geometric sequence; heads beyond a power of two take every other number of a finer one."""
    assert alibi_slopes(8).tolist() == [2.0**-place for place in range(8)]
    torch.testing.assert_close(alibi_slopes(6), torch.tensor([1, 1 / 4, 1 / 16, 1 / 64, 1, 1 / 4]))
