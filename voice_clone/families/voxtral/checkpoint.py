"""A checkpoint folder of Voxtral TTS: configuration, weights, and how their names and layouts become ours.

Rotary dimensions 2i and 2i + 1 of the backbone turn together; see `halves_apart`. The codec's convolutions are
weight-normed. The semantic head has rows for ids that are never made. The semantic codebook is stored as the sum of the
vectors of each code, and their count.
"""

from __future__ import annotations

import re
from functools import cached_property, partial

from voice_clone.array_kinds import Numbers, in_float32
from voice_clone.checkpoint import LLAMA_NAMES, PARAMETRIZED, CheckpointFiles, Source, halves_apart, weight_normed
from voice_clone.checkpoint_folder import check_converted
from voice_clone.errors import CheckpointError
from voice_clone.families.voxtral.config import (
    END,
    VOICE_FOLDER,
    VOICES,
    VoxtralConfig,
    has_encoder,
    load_config,
)
from voice_clone.mapped_weights import MappedWeights
from voice_clone.native.arrays import Array

BACKBONE, TABLES, FLOW, CODEC = "", "mm_audio_embeddings.", "acoustic_transformer.", "audio_tokenizer."

_TURNED = re.compile(r"^layers\.\d+\.self_attn\.[qk]_proj\.weight$")
_SMALLEST_COUNT = 1e-5


class Checkpoint(CheckpointFiles):
    config: VoxtralConfig
    load_config = staticmethod(load_config)
    names = (
        (r"\.self_attn\.([qkvo])_proj\.", r".attention.w\1."),
        (r"\.self_attn\.([qk])_norm\.", r".attention.\1_norm."),
        *LLAMA_NAMES,
        (r"\.self_attn_layer_scale\.scale", ".attention_scale"),
        (r"\.mlp_layer_scale\.scale", ".ffn_scale"),
    )

    @cached_property
    def has_encoder(self) -> bool:
        """Whether the codec's encoder is among the weights. The public checkpoint lacks it."""
        return has_encoder(self.folder)

    def source(self, name: str, shape: tuple[int, ...]) -> Source:
        official = self.official(name)
        if _TURNED.match(name):
            return Source({official: shape}, partial(halves_apart, head_dim=self.config.head_dim))
        if name == f"{FLOW}semantic_codebook_output.weight":
            return Source({official: (padded(shape[0] + 1), shape[1])}, partial(_rows, first=END, count=shape[0]))
        if name.startswith(CODEC) and official.endswith(".conv.weight"):
            return weight_normed(official.removesuffix("weight"), shape, PARAMETRIZED)
        if name.endswith("semantic_codebook.embedding"):
            stem = official.removesuffix("embedding")
            return Source({f"{stem}embedding_sum": shape, f"{stem}cluster_usage": shape[:1]}, _mean)
        return super().source(name, shape)

    def voices(self) -> dict[str, Array]:
        """The embeddings of the checkpoint's own voices by name, [positions, dim] each, memory-mapped. uint16
        are the bits of bf16.

        Raises:
            CheckpointError: they are not converted yet, or a voice of params.json is missing or of a wrong shape.
        """
        names = self.config.presets
        if not names:
            return {}
        check_converted(self.folder, VOICES, VOICE_FOLDER)
        found = self.shapes(VOICES)
        for name in names:
            shape = found.get(name)
            if shape is None or len(shape) != 2 or shape[0] < 1 or shape[1] != self.config.dim:
                raise CheckpointError(
                    f"{VOICES}.safetensors: the voice {name} is missing or has no rows of {self.config.dim} numbers"
                )
        weights = MappedWeights(self.folder, VOICES)
        return {name: weights.read(name, found[name]) for name in names}


def padded(rows: int) -> int:
    """Rows of a table that is padded to a multiple of 128, as the official code has its tables."""
    return -(-rows // 128) * 128


def _rows(table: Numbers, first: int, count: int) -> Numbers:
    return table[first : first + count]


def _mean(total: Numbers, count: Numbers) -> Numbers:
    return in_float32(total) / in_float32(count).clip(_SMALLEST_COUNT)[:, None]
