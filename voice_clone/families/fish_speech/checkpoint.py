"""A checkpoint folder of Fish Speech S2 Pro: configuration, weights, and how their names and layouts become ours.

The layouts differ in three ways. Queries, keys and values are one matrix. RoPE is interleaved, and half-split in our
layers. The codec's convolutions are weight-normed: a direction and a length.
"""

from __future__ import annotations

import re
from functools import cached_property, partial
from pathlib import Path

from torch import Tensor, nn

from voice_clone.checkpoint import CheckpointFiles, Source, as_it_is, fold, halves_apart
from voice_clone.checkpoint_folder import check_converted
from voice_clone.errors import CheckpointError
from voice_clone.families.fish_speech.config import (
    CODEC,
    CODEC_PICKLE,
    HEAD_DIM,
    CodecConfig,
    FishSpeechConfig,
    codec_config,
    load_config,
)

SLOW, FAST = "text_model.model.", "audio_decoder."

_NAMES = (  # ours -> official, in this order
    (r"^upsample\.", "quantizer.upsample."),
    (r"^decoder\.", "decoder.model."),
    (r"\.act1\.", ".block.0."),
    (r"\.conv1\.", ".block.1."),
    (r"\.act2\.", ".block.2."),
    (r"\.conv2\.", ".block.3."),
    (r"\.self_attn_layer_scale\.scale", ".attention_layer_scale.gamma"),
    (r"\.mlp_layer_scale\.scale", ".ffn_layer_scale.gamma"),
    (r"\.self_attn\.o_proj\.", ".attention.wo."),
    (r"\.self_attn\.[qkv]_proj\.", ".attention.wqkv."),
    (r"\.self_attn\.", ".attention."),
    (r"\.mlp\.gate_proj\.", ".feed_forward.w1."),
    (r"\.mlp\.up_proj\.", ".feed_forward.w3."),
    (r"\.mlp\.down_proj\.", ".feed_forward.w2."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
)
_WEIGHT_NORMED = re.compile(r"^(encoder|decoder)\..*\.conv\.weight$|\.(in|out)_proj\.weight$")
_QKV = re.compile(r"\.self_attn\.([qkv])_proj\.weight$")


class Checkpoint(CheckpointFiles):
    """A checkpoint folder.

    Raises:
        CheckpointError: the configuration is missing or malformed, or that of another family.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config: FishSpeechConfig = load_config(folder)

    @cached_property
    def codec(self) -> CodecConfig:
        """The codec's sizes.

        Raises:
            CheckpointError: the codec is missing, not converted yet, or of another family.
        """
        check_converted(self.folder, CODEC, CODEC_PICKLE)
        found = codec_config(self.shapes(CODEC))
        if found.code_limits != self.config.code_limits:
            raise CheckpointError(f"codec and config.json disagree: {found.code_limits}, {self.config.code_limits}")
        return found

    def source(self, name: str, shape: tuple[int, ...]) -> Source:
        """Of our name and shape the official tensors."""
        official = name
        for ours, theirs in _NAMES:
            official = re.sub(ours, theirs, official)
        if part := _QKV.search(name):
            return self._qkv_source(name, official, part.group(1), shape)
        if re.search(r"\.[qk]_norm\.weight$", name):
            return Source({official: shape}, partial(halves_apart, head_dim=shape[0]))
        if _WEIGHT_NORMED.search(official):
            stem = official.removesuffix("weight")
            return Source({f"{stem}weight_g": (shape[0], 1, 1), f"{stem}weight_v": shape}, fold)
        return Source({official: shape}, as_it_is)

    def encoder_fingerprint(self, module: nn.Module) -> str:
        """Of the voice encoder."""
        return self.fingerprint({"codec": "fish_speech"}, CODEC, "", self.sources(module))

    def _qkv_source(self, name: str, official: str, part: str, shape: tuple[int, ...]) -> Source:
        head, rows = HEAD_DIM, (shape[0], shape[0], shape[0])  # in the codec
        for prefix, sizes in ((SLOW, self.config.text_config), (FAST, self.config.audio_decoder_config)):
            if name.startswith(prefix):
                head, keys = sizes.head_size, sizes.head_size * sizes.kv_heads
                rows = sizes.n_head * head, keys, keys
        place = "qkv".index(part)
        take = partial(_rows, first=sum(rows[:place]), count=rows[place], head_dim=0 if part == "v" else head)
        return Source({official: (sum(rows), *shape[1:])}, take)


def _rows(matrix: Tensor, first: int, count: int, head_dim: int) -> Tensor:
    rows = matrix[first : first + count]
    return halves_apart(rows, head_dim) if head_dim else rows
