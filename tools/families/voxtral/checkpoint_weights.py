"""Random weights under which signals neither vanish nor explode, in any stage and at any size. Names are official.

The recipe: a layer's output has about the power of its input, residual branches add a fraction. A weight-normed weight
has the length of its gain and any direction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tools.families.gains import VECTOR, Gains, Sizes, around, length, spread
from tools.families.weight_files import Shapes
from voice_clone.families.voxtral.checkpoint import BACKBONE, CODEC, FLOW, TABLES, Checkpoint
from voice_clone.families.voxtral.codec_networks import CodecDecoder, CodecEncoder
from voice_clone.families.voxtral.talker_network import TalkerNetwork

LOGITS = 2.5  # spread of the semantic logits
END_ROW = 1  # of the semantic head
HEAD = f"{FLOW}semantic_codebook_output.weight"

_TABLE = Gains(
    kinds=(
        (r"audio_codebook_embeddings\.embeddings\.weight$", lambda noise, _: noise / math.sqrt(37)),  # as many add up
        (r"(tok_embeddings\.weight|original1)$", spread()),
        (r"original0$", length),
        (r"embedding_sum$", spread(0.6)),
        (r"cluster_usage$", lambda noise, _: 1 + 0.5 * noise.abs()),
        (r"_scale$", around(0.3, 0.03)),  # of residual branches
        (r"inv_freq$", lambda noise, _: torch.exp(-math.log(10_000.0) * torch.arange(len(noise)) / len(noise))),
        (VECTOR, around(1, 0.1)),  # norms
    ),
    gains=(
        (rf"^{HEAD}$", LOGITS),
        (r"\.input_proj\.", 8.0),  # speech has an RMS near 0.1
        (r"\.output_proj\.", 0.15),  # the waveform: far from the limits
        (r"^audio_tokenizer\.decoder_blocks\.[2-9]\.conv\.", math.sqrt(2)),  # two inputs meet in an output of four taps
        (r"^audio_tokenizer\.", 1.0),  # layer scales make residual branches small
        (r"\.(wo|w2)\.weight$", 0.3),
        (r"acoustic_codebook_output\.", 0.7),
    ),
    fan_in=lambda name, sizes: sizes[1],
)


def model_shapes(checkpoint: Checkpoint, encoder: bool) -> Shapes:
    """Names and shapes of all tensors; the folder has its params.json."""
    with torch.device("meta"):
        talker = TalkerNetwork(checkpoint.config)
        parts: list[tuple[str, nn.Module]] = [
            (BACKBONE, talker.backbone),
            (TABLES, talker.tables),
            (FLOW, talker.flow),
            (CODEC, CodecDecoder(checkpoint.config.codec)),
        ]
        if encoder:
            parts.append((CODEC, CodecEncoder(checkpoint.config.codec)))
    found: Shapes = {}
    for prefix, module in parts:
        found |= checkpoint.sources(module, prefix)
    found[f"{FLOW}time_embedding.inv_freq"] = (checkpoint.config.flow.dim // 2,)
    return found


def random_tensor(name: str, shape: Sizes, seed: int) -> Tensor:
    """The tensor `name`, float32; its values depend on the arguments alone."""
    made = _TABLE(name, shape, seed)
    if name == HEAD:
        made[END_ROW] *= 0.85  # speech ends about once in some thousand frames
    return made
