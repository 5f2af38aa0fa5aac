"""The code predictor as native code."""

from __future__ import annotations

from torch import nn

from voice_clone.autoregressive.native_predictor import Load, NativePredictor, layer_loader
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.families.qwen3_tts.networks.code_predictor import CodePredictor
from voice_clone.native.matrix.weights import Precision
from voice_clone.native.packed_file import PackedFile


class NativeCodePredictor(NativePredictor):
    """A code predictor on a CPU.

    Args:
        predictor: in torch; its weights are packed one after the other and freed.
        precision: of the layers; heads and projection are not rounded below int8, embeddings to bf16 at any precision
            but fp32.
        load, packed: as of `NativeTalker`.
    """

    def __init__(self, predictor: CodePredictor, precision: Precision, load: Load | None, packed: PackedFile) -> None:
        config, projection = predictor.config, predictor.small_to_mtp_projection
        heads = [head.weight.detach() for head in predictor.lm_head if isinstance(head, nn.Linear)]
        layers = layer_loader(load, "code_predictor.model")
        stack = NativeStack(predictor.stack, precision, layers, packed.part("predictor"))
        predictor.lm_head = nn.ModuleList()
        tables = predictor.model.codec_embedding.weight
        super().__init__(
            stack,
            heads,
            tables if precision == "fp32" else tables.bfloat16(),
            config.vocab_size,
            config.num_code_groups,
            precision,
            projection if isinstance(projection, nn.Linear) else None,
            part=packed.part("heads"),
        )
