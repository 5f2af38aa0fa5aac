"""Native code in place of a talker's modules, on a CPU."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from voice_clone.autoregressive.first_code import NativeRepetitionAwareFirstCode
from voice_clone.autoregressive.native_predictor import Load, NativePredictor, layer_loader
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.families.fish_speech.networks.talker import Talker
from voice_clone.native.matrix.linear import NativeLinear
from voice_clone.native.matrix.weights import Precision, embedding_array, head_precision, pack
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.native.transformer import decoder_stack


def use_native_code(
    talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> Talker:
    """Replace the layers, heads and samplers of a talker by native code; returns it.

    The tables of embeddings stay as they are, for a frame reads a few of their rows.

    Args:
        talker: in fp32, on the CPU. Its layers and heads are packed one after the other and freed.
        precision: to which the weights of all layers are rounded; those of the heads not below int8.
        load: fills a module, given its name below the talker; for the layers, if they are not loaded yet.
        packed: finds the packed layers and keeps them.
    """
    config, head, fast = talker.config, talker.head, talker.fast
    rows = talker.code_rows
    table, codebooks = embedding_array(rows), embedding_array(fast.codebook_embeddings.weight.detach())
    head.logits = NativeLinear(pack(rows, head_precision(precision)), len(rows))
    talker.native_stack = NativeStack(talker.slow, precision, layer_loader(load, "slow"), packed.part("slow"))
    output = fast.output.weight
    assert isinstance(output, Tensor)
    head.predictor = NativePredictor(
        NativeStack(fast, precision, layer_loader(load, "fast"), packed.part("fast")),
        [output.detach()[: fast.codes]],
        fast.embeddings.weight.detach(),
        config.semantic_codes,
        config.codebooks,
        precision,
        part=packed.part("output"),
    )
    del fast.output  # it is packed
    packed.keep()
    head.first = NativeRepetitionAwareFirstCode(head.vocabulary, head.end_code)

    def embed_frames(codes: Tensor) -> Tensor:
        repeated = torch.cat([codes[:, :1], codes], dim=1).contiguous()  # the token, then each codebook's code
        found = np.empty((len(codes), table.shape[1]), np.float32)
        decoder_stack.embed_frames(table, codebooks, config.semantic_codes, repeated.numpy(), found)
        return torch.from_numpy(found) / math.sqrt(config.codebooks + 1)

    talker.embed_frames = embed_frames
    return talker
