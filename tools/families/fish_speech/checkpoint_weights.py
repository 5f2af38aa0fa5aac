"""Random weights under which signals neither vanish nor explode, in any stage and at any size. Names are official.

The recipe: a layer's output has about the power of its input, residual branches add a fraction, codebooks shrink along
the residual quantizer. A weight-normed weight has the length of its gain and any direction.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from tools.families.weight_files import Shapes, noise_of
from voice_clone.families.fish_speech.checkpoint import FAST, SLOW, Checkpoint
from voice_clone.families.fish_speech.codec_decoder import CodecDecoder
from voice_clone.families.fish_speech.config import CodecConfig
from voice_clone.families.fish_speech.encoder import CodecEncoder
from voice_clone.families.fish_speech.talker_network import FastTransformer, SlowTransformer

LOGITS = 2.5  # spread of the logits: enough for sampling to choose, and not only one

# Gains of weight-normed convolutions; the first pattern found counts, else 1.
_GAINS = (
    (r"^encoder\.block\.0\.", 10.0),  # speech has an RMS near 0.1
    (r"^encoder\.block\.\d+\.block\.\d\.block\.3\.", 0.4),  # residual units
    (r"^decoder\.model\.\d+\.block\.\d\.block\.3\.", 0.3),
    (r"^decoder\.model\.6\.", 0.08),  # the waveform: far from the limits
)


def model_shapes(checkpoint: Checkpoint) -> Shapes:
    """Names and shapes of the two transformers' tensors; the folder has its config.json."""
    with torch.device("meta"):
        slow, fast = SlowTransformer(checkpoint.config), FastTransformer(checkpoint.config)
    return checkpoint.sources(slow, SLOW) | checkpoint.sources(fast, FAST)


def codec_shapes(checkpoint: Checkpoint, codec: CodecConfig) -> Shapes:
    """Names and shapes of the codec's tensors, weight norm spelled `weight_g`, `weight_v`."""
    with torch.device("meta"):
        return checkpoint.sources(CodecEncoder(codec)) | checkpoint.sources(CodecDecoder(codec))


def random_tensor(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """The tensor `name`, float32; its values depend on the arguments alone."""
    noise = noise_of(name, shape, seed)
    if name == f"{SLOW}embeddings.weight":
        # It is the head, too. A frame's codebooks weigh far more: else the token that was read would win again.
        return noise * (LOGITS / math.sqrt(shape[1]))
    if name.endswith(("embeddings.weight", "codebook.weight", "weight_v")):
        return noise
    if name.endswith("weight_g"):
        return _gain(name) * (1 + 0.05 * noise)
    if name.endswith("gamma"):  # of residual branches
        return 0.3 + 0.03 * noise
    if name.endswith("alpha"):
        return 1 + 0.2 * noise
    if name.endswith("bias"):
        return 0.05 * noise
    if len(shape) == 1:  # norms
        return 1 + 0.1 * noise
    gain = 1.0
    if re.search(r"\.(wo|w2)\.weight$", name) and name.startswith((SLOW, FAST)):
        gain = 0.3  # many small branches; in the codec they have layer scales
    if name == f"{FAST}output.weight":
        gain = LOGITS
    fan_in = shape[0] if ".upsample." in name and len(shape) == 3 and shape[1] > 1 else math.prod(shape[1:])
    return noise * (gain / math.sqrt(fan_in))


def _gain(name: str) -> float:
    if book := re.search(r"quantizer\.quantizers\.(\d+)\.out_proj", name):
        return 0.5 * 0.8 ** int(book.group(1))
    if upsampling := re.match(r"decoder\.model\.(\d)\.block\.1\.", name):
        rate = (8, 8, 4, 2)[int(upsampling.group(1)) - 1]
        return math.sqrt(rate / 2)  # the length of an input channel's weights; two inputs meet in an output
    return next((gain for pattern, gain in _GAINS if re.search(pattern, name)), 1.0)
