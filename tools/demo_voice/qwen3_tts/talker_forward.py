"""The talker and the code predictor as functions that gradients flow through, whole sequences at once.

The package's networks compute the same step by step, with a key-value cache. Shapes: B sequences, T positions, C hidden
size, N frames, K codebooks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.demo_voice.qwen3_tts.decoder_forward import norm
from voice_clone.autoregressive.stack.decoder_stack import Attention, DecoderLayer, DecoderStack
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.layers.attention import apply_rotary, rotary_cos_sin

NO_TOKEN = -1


@dataclass(frozen=True, eq=False)
class Positions:
    """What stands at each position of a batch. Every position is a text row plus a codec row.

    Attributes:
        text: int64 [B, T], text tokens.
        control: int64 [B, T], control tokens of the codec; NO_TOKEN: none.
        speaker: bool [B, T], where the speaker embedding stands.
        codes: int64 [B, T, K], a codec frame; only where `framed` is true.
        framed: bool [B, T].
    """

    text: Tensor
    control: Tensor
    speaker: Tensor
    codes: Tensor
    framed: Tensor


def embed(talker: Talker, positions: Positions, speakers: Tensor) -> Tensor:
    """The talker's input [B, T, C]; `speakers`: [B, C]."""
    table = talker.text_projection(talker.model.text_embedding.weight)
    x = F.embedding(positions.text, table)
    controlled = (positions.control != NO_TOKEN)[..., None]
    x = x + controlled * talker.model.codec_embedding(positions.control.clamp(min=0))
    x = x + positions.speaker[..., None] * speakers[:, None]
    embedded: Tensor = x + positions.framed[..., None] * embed_frames(talker, positions.codes)
    return embedded


def embed_frames(talker: Talker, codes: Tensor) -> Tensor:
    """[..., K] -> [..., C]: the sum of the codes' embeddings."""
    books = codes.shape[-1] - 1
    places = codes[..., 1:] + torch.arange(books, device=codes.device) * talker.code_predictor.config.vocab_size
    others = F.embedding_bag(places.reshape(-1, books), talker.code_predictor.model.codec_embedding.weight, mode="sum")
    first: Tensor = talker.model.codec_embedding(codes[..., 0])
    return first + others.view_as(first)


def run(stack: DecoderStack, x: Tensor, guided: tuple[int, int] | None = None) -> tuple[Tensor, Tensor | None]:
    """All positions at once, each seeing itself and those before it.

    Args:
        x: [B, T, C].
        guided: a layer and one of its heads.

    Returns:
        The normed hidden states [B, T, C], and the logarithm of the guided head's attention [B, T, T].
    """
    config = stack.config
    x = x.float()
    cos, sin = rotary_cos_sin(torch.arange(x.shape[1], device=x.device), config.head_dim, config.rope_theta)
    seen = None
    for index, layer in enumerate(stack.layers):
        assert isinstance(layer, DecoderLayer)
        q, k, v = _heads(layer.self_attn, norm(layer.input_layernorm, x), cos, sin)
        if guided is not None and guided[0] == index:
            seen = _log_attention(q[:, guided[1]], k[:, guided[1] // (q.shape[1] // k.shape[1])])
        with torch.autocast(x.device.type, enabled=False):  # on a CPU its gradient is slow in half precision
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        x = x + layer.self_attn.o_proj(out.transpose(1, 2).flatten(2))
        x = x + layer.mlp(norm(layer.post_attention_layernorm, x))
    normed: Tensor = norm(stack.norm, x)
    return normed, seen


def _heads(attention: Attention, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, [B, heads, T, D]."""
    heads, groups = attention.heads, attention.kv_heads
    qkv = attention.qkv_proj(x).float().view(*x.shape[:2], -1, attention.head_dim).transpose(1, 2)
    q, k, v = qkv.split([heads, groups, groups], dim=1)
    return apply_rotary(norm(attention.q_norm, q), cos, sin), apply_rotary(norm(attention.k_norm, k), cos, sin), v


def _log_attention(q: Tensor, k: Tensor) -> Tensor:
    """One head's: [B, T, D] each -> [B, T, T]."""
    with torch.autocast(q.device.type, enabled=False):
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1)
    found: Tensor = scores.masked_fill(later, -torch.inf).log_softmax(dim=-1)
    return found


def predict(talker: Talker, hidden: Tensor, codes: Tensor) -> Tensor:
    """Logits of codebooks 1..K-1 of N frames, from the hidden states [N, C] and the codes [N, K]: [N, K-1, V]."""
    out = _predictor_states(talker, hidden, codes[:, :-1])
    heads = torch.stack([_weight(head) for head in talker.code_predictor.lm_head])  # [K-1, V, C']
    return torch.einsum("nkc,kvc->nkv", out[:, 1:], heads)


def complete(talker: Talker, hidden: Tensor, first: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Codes [N, K] of N frames, drawn one book after the other, from the hidden states [N, C] and codes 0 [N]."""
    codes = first[:, None]
    for book in range(1, talker.code_predictor.codebooks):
        last = _predictor_states(talker, hidden, codes)[:, -1]
        logits = talker.code_predictor.logits(last, book)
        codes = torch.cat([codes, draw(logits, temperature, generator)[:, None]], dim=1)
    return codes


def draw(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Draw from the distributions of `logits` [N, V] at a temperature: int64 [N]."""
    chances = (logits.float() / temperature).softmax(dim=-1)
    return torch.multinomial(chances.cpu(), 1, generator=generator)[:, 0].to(logits.device)


def _predictor_states(talker: Talker, hidden: Tensor, codes: Tensor) -> Tensor:
    """The predictor's states [N, 1 + n, C'] at the hidden state and behind each of n >= 1 codes [N, n] of a frame."""
    predictor = talker.code_predictor
    parts = [hidden[:, None], talker.model.codec_embedding(codes[:, :1])]
    if codes.shape[1] > 1:
        parts.append(predictor.embed(codes[:, 1:]))
    out, _ = run(predictor.model, predictor.project(torch.cat(parts, dim=1)))
    return out


def _weight(head: nn.Module) -> Tensor:
    assert isinstance(head, nn.Linear)
    return head.weight
