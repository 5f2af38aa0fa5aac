"""A checkpoint folder of Fish Speech S2 Pro: configuration, weights, and how their names and layouts become ours.

The layouts differ in three ways. Queries, keys and values are one matrix. RoPE is interleaved, and half-split in our
layers. The codec's convolutions are weight-normed: a direction and a length.
"""

from __future__ import annotations

import re
from functools import cached_property, partial

from voice_clone.checkpoint import (
    DAC_NAMES,
    LLAMA_NAMES,
    WEIGHT_NORM,
    CheckpointFiles,
    Source,
    halves_apart,
    part_of_qkv,
    weight_normed,
)
from voice_clone.checkpoint_folder import check_converted
from voice_clone.errors import CheckpointError
from voice_clone.families.fish_speech.config import (
    CODEC,
    HEAD_DIM,
    CodecConfig,
    FishSpeechConfig,
    codec_config,
    load_config,
)
from voice_clone.families.fish_speech.family import CARD

SLOW, FAST = "text_model.model.", "audio_decoder."

_WEIGHT_NORMED = re.compile(r"^(encoder|decoder)\..*\.conv\.weight$|\.(in|out)_proj\.weight$")
_QKV = re.compile(r"\.self_attn\.([qkv])_proj\.weight$")


class Checkpoint(CheckpointFiles):
    config: FishSpeechConfig
    load_config = staticmethod(load_config)
    names = (
        (r"^upsample\.", "quantizer.upsample."),
        (r"^decoder\.", "decoder.model."),
        *DAC_NAMES,
        (r"\.self_attn_layer_scale\.scale", ".attention_layer_scale.gamma"),
        (r"\.mlp_layer_scale\.scale", ".ffn_layer_scale.gamma"),
        (r"\.self_attn\.o_proj\.", ".attention.wo."),
        (r"\.self_attn\.[qkv]_proj\.", ".attention.wqkv."),
        (r"\.self_attn\.", ".attention."),
        *LLAMA_NAMES,
    )

    @cached_property
    def codec(self) -> CodecConfig:
        """The codec's sizes.

        Raises:
            CheckpointError: the codec is missing, not converted yet, or of another family.
        """
        check_converted(self.folder, CODEC, CARD.weights[1].pickles)
        found = codec_config(self.shapes(CODEC))
        if found.code_limits != self.config.code_limits:
            raise CheckpointError(f"codec and config.json disagree: {found.code_limits}, {self.config.code_limits}")
        return found

    def source(self, name: str, shape: tuple[int, ...]) -> Source:
        official = self.official(name)
        if part := _QKV.search(name):
            return self._qkv_source(name, official, part.group(1), shape)
        if re.search(r"\.[qk]_norm\.weight$", name):
            return Source({official: shape}, partial(halves_apart, head_dim=shape[0]))
        if _WEIGHT_NORMED.search(official):
            return weight_normed(official.removesuffix("weight"), shape, WEIGHT_NORM)
        return super().source(name, shape)

    def _qkv_source(self, name: str, official: str, part: str, shape: tuple[int, ...]) -> Source:
        head, rows = HEAD_DIM, (shape[0], shape[0], shape[0])  # in the codec
        for prefix, sizes in ((SLOW, self.config.text_config), (FAST, self.config.audio_decoder_config)):
            if name.startswith(prefix):
                head, keys = sizes.head_size, sizes.head_size * sizes.kv_heads
                rows = sizes.n_head * head, keys, keys
        return part_of_qkv(official, part, rows, shape[1], head)
