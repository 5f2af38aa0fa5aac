"""The two language models of VoxCPM2 and the encoder of frames before them, as one `Stack`. Needs no torch.

The base model reads tokens and frames. Its results for frames are rounded (finite scalar quantization, Mentzer et al.
2024); the residual model reads them together with the frames. Source: voxcpm 2.0.3, `VoxCPM2Model._inference`.

The row of a position has all about it. The stack reads a token's embedding, a flag that says whether the position is a
frame, and the frame, which it encodes. It returns the results of both models, and the frame, from which the next one
continues.

Shapes: N positions, C hidden size, W numbers of a frame, I = C + 1 + W, H = 2 C + W.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from voice_clone.array_kinds import (
    Numbers,
    copied,
    in_dtype_of,
    in_kind_of,
    namespace,
    places_of,
    without_gradients,
    zeros,
)
from voice_clone.autoregressive.stack.protocol import Stack, StackConfig
from voice_clone.families.voxcpm2.audio_vae_config import WIDTH
from voice_clone.families.voxcpm2.config import LocalConfig, VoxCPM2Config

Linear = Callable[[Numbers], Numbers]

Read = Callable[[Stack, Any, Numbers], Numbers]
"""One of the models reads positions: the model, its part of the cache, [N, C] -> [N, C]."""


def layouts(config: VoxCPM2Config) -> dict[str, StackConfig]:
    """Of the four decoder stacks, by their names. The rows of a frame, of which there are few, all see each other."""
    lm = config.lm_config
    base = StackConfig(
        hidden_size=lm.hidden_size,
        intermediate_size=lm.intermediate_size,
        num_hidden_layers=lm.num_hidden_layers,
        num_attention_heads=lm.num_attention_heads,
        num_key_value_heads=lm.num_key_value_heads,
        head_dim=lm.kv_channels,
        rms_norm_eps=lm.rms_norm_eps,
        rope_theta=lm.rope_theta,
        rope_factors=lm.rope_scaling.short_factor,
        qk_norm=False,
    )

    def local(sizes: LocalConfig) -> StackConfig:
        return replace(
            base,
            hidden_size=sizes.hidden_dim,
            intermediate_size=sizes.ffn_dim,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            head_dim=sizes.kv_channels,
            causal=False,
        )

    return {
        "models.base_lm": base,
        "models.residual_lm": replace(
            base, num_hidden_layers=config.residual_lm_num_layers, rope="none", rope_factors=None
        ),
        "models.feat_encoder.encoder": local(config.encoder_config),
        "sampler.feat_decoder.estimator.decoder": local(config.dit_config),
    }


class LanguageModels:
    """A `Stack` of I numbers in and H out, of tensors or of arrays.

    Args:
        base, residual: the models.
        encode: frames [N, W] -> [N, C].
        quantize: rounds a few projections of hidden states, [N, C] -> [N, C].
        join: [N, 2 C] -> [N, C].
        new_cache: of all layers, for so many slots of so many positions; its `base` and `residual` are each model's.

    Attributes:
        encode: this.
    """

    def __init__(
        self,
        base: Stack,
        residual: Stack,
        encode: Linear,
        quantize: Linear,
        join: Linear,
        new_cache: Callable[[int, int], Any],
    ) -> None:
        self._models = base, residual
        self.encode, self._quantize, self._join, self._new_cache = encode, quantize, join, new_cache
        self.config = of_all_layers(base.config, residual.config)

    @property
    def input_size(self) -> int:
        return self.config.hidden_size + 1 + WIDTH

    @property
    def hidden_size(self) -> int:
        return 2 * self.config.hidden_size + WIDTH

    @property
    def like(self) -> Numbers:
        return self._models[0].like

    @property
    def varlen(self) -> bool:
        return all(model.varlen for model in self._models)

    @property
    def repeatable(self) -> bool:
        return all(model.repeatable for model in self._models)

    def prepare(self, graphs: bool) -> None:
        for model in self._models:
            model.prepare(graphs)

    def new_cache(self, slots: int, max_length: int) -> Any:
        return self._new_cache(slots, max_length)

    def token_rows(self, tokens: Numbers) -> Numbers:
        """Tokens' embeddings [N, C] -> [N, I]."""
        return namespace(tokens).concatenate([tokens, zeros((len(tokens), 1 + WIDTH), tokens)], 1)

    def frame_rows(self, frames: Numbers) -> Numbers:
        """[N, W] -> [N, I]."""
        kind, frames = namespace(frames), in_dtype_of(self.like, frames)
        tokens = zeros((len(frames), self.config.hidden_size), frames)
        return kind.concatenate([tokens, kind.ones_like(frames[:, :1]), frames], 1)

    def parts(self, hidden: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """[N, H] -> the base model's results [N, C], the residual model's [N, C], the frames [N, W]."""
        size = self.config.hidden_size
        return hidden[:, :size], hidden[:, size : 2 * size], hidden[:, 2 * size :]

    @without_gradients
    def prefill(self, cache: Any, slot: int, embeds: Numbers, offset: int = 0) -> Numbers:
        tokens, is_frame, frames = self._columns(embeds)
        read = copied(tokens)
        if len(places := places_of(is_frame[:, 0])):  # this waits for a GPU; graphs call `prefill_together`
            read[places] = self.encode(frames[places])
        positions = in_kind_of(embeds, np.arange(offset, offset + len(embeds)))
        slots, owner = in_kind_of(embeds, np.array([slot])), namespace(embeds).zeros_like(positions)

        def together(model: Stack, part: Any, x: Numbers) -> Numbers:
            return model.prefill_together(part, slots, owner, positions, x, offset + len(embeds))

        return self._read(cache, read, is_frame, frames, together)[-1]

    @without_gradients
    def decode(
        self,
        cache: Any,
        slots: Sequence[int],
        positions: Sequence[int],
        embeds: Numbers,
        seen: Sequence[int] | None = None,
    ) -> Numbers:
        return self._read_frames(cache, embeds, lambda model, part, x: model.decode(part, slots, positions, x, seen))

    @without_gradients
    def decode_first(self, cache: Any, positions: Numbers, embeds: Numbers, length: int) -> Numbers:
        return self._read_frames(cache, embeds, lambda model, part, x: model.decode_first(part, positions, x, length))

    @without_gradients
    def prefill_together(
        self,
        cache: Any,
        slots: Numbers,
        owner: Numbers,
        positions: Numbers,
        embeds: Numbers,
        length: int,
        begins: Numbers | None = None,
    ) -> Numbers:
        tokens, is_frame, frames = self._columns(embeds)
        read = namespace(embeds).where(is_frame, self.encode(frames), tokens)

        def together(model: Stack, part: Any, x: Numbers) -> Numbers:
            return model.prefill_together(part, slots, owner, positions, x, length, begins)

        return self._read(cache, read, is_frame, frames, together)

    def _columns(self, rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """[N, I] -> tokens [N, C], whether there is a frame instead [N, 1], frames [N, W]."""
        size = self.config.hidden_size
        return rows[:, :size], rows[:, size : size + 1] != 0, rows[:, size + 1 :]

    def _read_frames(self, cache: Any, rows: Numbers, read: Read) -> Numbers:
        """Of rows [N, I] that are all frames -> [N, H]."""
        _, is_frame, frames = self._columns(rows)
        return self._read(cache, self.encode(frames), is_frame, frames, read)

    def _read(self, cache: Any, x: Numbers, is_frame: Numbers, frames: Numbers, read: Read) -> Numbers:
        """Both models read: what the base model gets [N, C], then as of `_columns` -> [N, H]."""
        base, residual = self._models
        kind = namespace(x)
        hidden = read(base, cache.base, copied(x))
        hidden = kind.where(is_frame, self._quantize(hidden), hidden)
        heard = kind.where(is_frame, x, kind.zeros_like(x))
        made = read(residual, cache.residual, self._join(kind.concatenate([hidden, heard], 1)))
        return kind.concatenate([hidden, made, frames], 1)


def of_all_layers(base: StackConfig, residual: StackConfig) -> StackConfig:
    """The layout of the cache of both models."""
    return replace(base, num_hidden_layers=base.num_hidden_layers + residual.num_hidden_layers)
