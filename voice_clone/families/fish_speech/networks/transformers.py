"""The slow and the fast transformer of S2 Pro with their tables, in torch.

fish-speech 0.1.0, `llama.py` (`DualARTransformer`). Both are stacks of Qwen3's and Llama's kind; `checkpoint.py`
lays the layers' weights out for half-split RoPE. Shapes: B frames, N frames or tokens, K codebooks, C hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voice_clone.autoregressive.code_head import PredictorByStep
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.families.fish_speech.config import FishSpeechConfig, TransformerConfig
from voice_clone.layers.fused import empty_table


def _stack(sizes: TransformerConfig, common: TransformerConfig) -> StackConfig:
    """`common`: whose base of the rotary tables and epsilon both transformers use, as the official code does."""
    return StackConfig(
        hidden_size=sizes.dim,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.n_layer,
        num_attention_heads=sizes.n_head,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_size,
        rms_norm_eps=common.norm_eps,
        rope_theta=common.rope_base,
        qk_norm=sizes.attention_qk_norm,
        rope_dtype=torch.bfloat16,
    )


class SlowTransformer(DecoderStack):
    """Predicts codebook 0, one frame a step; its table of tokens is its head, too."""

    def __init__(self, config: FishSpeechConfig) -> None:
        super().__init__(_stack(config.text_config, config.text_config))
        self.embeddings = empty_table(config.text_config.vocab_size, config.text_config.dim)


class FastTransformer(PredictorByStep, DecoderStack):
    """Predicts the other codebooks of a frame. A `voice_clone.autoregressive.code_head.CodePredictor`.

    Attributes:
        embeddings: of a code at a position of this transformer, one table for all codebooks.
        codebook_embeddings: of the codes of each codebook at a position of the slow transformer.
        output: the head, one for all codebooks; only the first rows' codes exist.
    """

    def __init__(self, config: FishSpeechConfig) -> None:
        DecoderStack.__init__(self, _stack(config.audio_decoder_config, config.text_config))
        size = config.audio_decoder_config.dim
        self.codebooks = config.codebooks
        self.codes = config.code_limits[1]
        self.embeddings = empty_table(config.semantic_codes, size)
        self.codebook_embeddings = empty_table(config.semantic_codes * config.codebooks, size)
        self.output: nn.Module = nn.Linear(size, config.semantic_codes, bias=False)

    @property
    def stack(self) -> DecoderStack:
        return self

    def project(self, x: Tensor) -> Tensor:
        return x

    def logits(self, hidden: Tensor, book: int) -> Tensor:
        found: Tensor = self.output(hidden)
        return found[..., : self.codes]

    def embed(self, codes: Tensor, book: int = 1) -> Tensor:
        rows: Tensor = self.embeddings(codes)
        return rows.to(self.norm.weight.dtype)
