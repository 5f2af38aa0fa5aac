"""A checkpoint folder of Pocket TTS: how the names and layouts of its weights become ours.

Queries, keys and values are one matrix, in which rotary dimensions 2i and 2i + 1 turn together; see `part_of_qkv`. The
two linear layers in front of the decoder become one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from voice_clone.checkpoint import CheckpointFiles, Source, part_of_qkv
from voice_clone.families.pocket_tts.config import PocketConfig, load_config

if TYPE_CHECKING:  # a stage that finds its weights packed does without torch
    from torch import Tensor

TALKER, CODEC = "flow_lm.", "mimi."

_QUERIES = re.compile(r"^(?P<stack>.*)\.layers\.\d+\.self_attn\.(?P<part>[qkv])_proj\.weight$")


class Checkpoint(CheckpointFiles):
    config: PocketConfig
    load_config = staticmethod(load_config)
    names = (
        (r"^flow_lm\.backbone\.norm\.", "flow_lm.out_norm."),
        (r"^flow_lm\.backbone\.", "flow_lm.transformer."),
        (r"^flow_lm\.speaker_proj\.weight$", "flow_lm.speaker_proj_weight"),
        (r"^mimi\.(emb_mean|emb_std)$", r"flow_lm.\1"),
        (r"^mimi\.(encoder|decoder)\.layers\.", r"mimi.\1.model."),
        (r"^mimi\.(encoder|decoder)_transformer\.", r"mimi.\1_transformer.transformer."),
        (r"^mimi\.downsample\.", "mimi.downsample.conv."),
        (r"\.self_attn\.[qkv]_proj\.", ".self_attn.in_proj."),
        (r"\.self_attn\.o_proj\.", ".self_attn.out_proj."),
        (r"\.input_layernorm\.", ".norm1."),
        (r"\.post_attention_layernorm\.", ".norm2."),
        (r"\.mlp\.fc([12])\.", r".linear\1."),
        (r"\.self_attn_layer_scale\.", ".layer_scale_1."),
        (r"\.mlp_layer_scale\.", ".layer_scale_2."),
    )

    def official(self, name: str) -> str:
        name = super().official(name)
        places = "|".join(str(3 * place + 2) for place in range(len(self.config.mimi.decoder_seanet.ratios)))
        return re.sub(rf"^(mimi\.decoder\.model\.(?:{places}))\.conv\.", r"\1.convtr.", name)

    def source(self, name: str, shape: tuple[int, ...]) -> Source:
        if name == f"{CODEC}upsample.conv.weight":
            inputs, outputs, kernel = shape
            official = {
                "mimi.quantizer.output_proj.weight": (outputs, inputs, 1),
                "mimi.upsample.convtr.convtr.weight": (outputs, 1, kernel),
            }
            return Source(official, _joined)
        if found := _QUERIES.match(name):
            queries, keys, dim = self._heads(found["stack"])
            return part_of_qkv(self.official(name), found["part"], (queries, keys, keys), shape[1], dim)
        return super().source(name, shape)

    def _heads(self, stack: str) -> tuple[int, int, int]:
        """Return how many rows the queries, the keys and one head have."""
        if stack.startswith(TALKER):
            sizes = self.config.flow_lm.transformer
            dim = sizes.queries // sizes.num_heads
            return sizes.queries, sizes.kv_heads * dim, dim
        codec = self.config.mimi
        window = codec.transformer if "encoder" in stack else codec.decoder_transformer
        return window.d_model, window.d_model, window.d_model // window.num_heads


def _joined(projection: Tensor, upsampling: Tensor) -> Tensor:
    """Join a projection [O, I, 1] and each channel's upsampling [O, 1, K] to a transposed convolution [I, O, K]."""
    import torch

    return torch.einsum("oi,ok->iok", projection[..., 0].float(), upsampling[:, 0].float())
