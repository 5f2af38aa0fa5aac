"""Native code in place of a talker's modules, on a CPU."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.first_code import NativeFirstCode
from voice_clone.autoregressive.native_predictor import Load, NativePredictor, layer_loader
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.families.qwen3_tts.networks.code_predictor import CodePredictor
from voice_clone.families.qwen3_tts.networks.talker import Talker, TextProjection, suppressed_ids
from voice_clone.native.matrix.linear import NativeLinear
from voice_clone.native.matrix.weights import Precision, embedding_array, head_precision
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.native.transformer import decoder_stack


def use_native_code(
    talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> Talker:
    """Replace the layers, heads and samplers of a talker by native code; returns it.

    Args:
        talker: in fp32, on the CPU. Its layers and heads are packed one after the other and freed.
        precision: to which the weights of all layers are rounded; those of the heads not below int8. The projection of
            the text stays fp32, because a prompt needs it once.
        load: fills a module, given its name below `talker.`; for the layers, if they are not loaded yet.
        packed: finds the packed layers and keeps them.
    """
    sizes = talker.config.talker
    talker.native_stack = NativeStack(talker.model, precision, layer_loader(load, "model"), packed.part("talker"))
    talker.head.logits = NativeLinear.of(talker.codec_head, head_precision(precision))
    del talker.codec_head
    talker.text_projection = _NativeTextProjection(talker.text_projection)
    predictor = native_predictor(talker.code_predictor, precision, load, packed)
    del talker.code_predictor  # its tables may have been rounded, so that these are not needed
    packed.keep()
    talker.head.first = NativeFirstCode(suppressed_ids(sizes), sizes.codec_eos_token_id)
    talker.head.predictor = predictor
    first, others = talker.model.codec_embedding.weight, predictor.codec_embedding
    size = sizes.code_predictor_config.vocab_size

    def embed_frames(codes: Tensor) -> Tensor:
        rows = np.empty((codes.shape[0], first.shape[1]), np.float32)
        decoder_stack.embed_frames(
            embedding_array(first), embedding_array(others), size, codes.contiguous().numpy(), rows
        )
        return torch.from_numpy(rows)

    talker.embed_frames = embed_frames
    return talker


class _NativeTextProjection(nn.Module):
    """A row does not depend on the others beside it."""

    def __init__(self, projection: nn.Module) -> None:
        super().__init__()
        assert isinstance(projection, TextProjection)
        self.linear_fc1 = NativeLinear.of(projection.linear_fc1, "fp32")
        self.linear_fc2 = NativeLinear.of(projection.linear_fc2, "fp32")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


def native_predictor(
    predictor: CodePredictor, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> NativePredictor:
    """A code predictor as native code; its weights are packed one after the other and freed.

    Args:
        precision: of the layers; heads and projection are not rounded below int8, embeddings to bf16 at any precision
            but fp32.
        load, packed: as of `use_native_code`.
    """
    config, projection = predictor.config, predictor.small_to_mtp_projection
    heads = [head.weight.detach() for head in predictor.lm_head if isinstance(head, nn.Linear)]
    layers = layer_loader(load, "code_predictor.model")
    stack = NativeStack(predictor.stack, precision, layers, packed.part("predictor"))
    predictor.lm_head = nn.ModuleList()
    tables = predictor.model.codec_embedding.weight
    return NativePredictor(
        stack,
        heads,
        tables if precision == "fp32" else tables.bfloat16(),
        config.vocab_size,
        config.num_code_groups,
        precision,
        projection if isinstance(projection, nn.Linear) else None,
        part=packed.part("heads"),
    )
