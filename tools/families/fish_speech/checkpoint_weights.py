"""Random weights under which signals neither vanish nor explode, in any stage and at any size. Names are official.

The recipe: a layer's output has about the power of its input, residual branches add a fraction, codebooks shrink along
the residual quantizer. A weight-normed weight has the length of its gain and any direction.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from tools.families.gains import VECTOR, Gains, Sizes, around, length, spread
from tools.families.weight_files import Shapes, noise_of
from voice_clone.families.fish_speech.checkpoint import FAST, SLOW, Checkpoint
from voice_clone.families.fish_speech.talker_network import FastTransformer, SlowTransformer

RATES = (8, 8, 4, 2)  # of the decoder's upsampling
LOGITS = 2.5  # spread of the logits: enough for sampling to choose, and not only one

_BRANCHES = rf"^({re.escape(SLOW)}|{re.escape(FAST)}).*\.(wo|w2)\.weight$"
_GAINS = (
    (r"^encoder\.block\.0\..*weight_g$", 10.0),  # speech has an RMS near 0.1
    (r"^encoder\.block\.\d+\.block\.\d\.block\.3\..*weight_g$", 0.4),  # residual units
    (r"^decoder\.model\.\d+\.block\.\d\.block\.3\..*weight_g$", 0.3),
    (r"^decoder\.model\.6\..*weight_g$", 0.08),  # the waveform: far from the limits
    *((rf"quantizer\.quantizers\.{book}\.out_proj.*weight_g$", 0.5 * 0.8**book) for book in range(10)),
    # The length of an input channel's weights; two inputs meet in an output.
    *((rf"^decoder\.model\.{at}\.block\.1\..*weight_g$", math.sqrt(rate / 2)) for at, rate in enumerate(RATES, 1)),
    (rf"^{re.escape(FAST)}output\.weight$", LOGITS),
    (_BRANCHES, 0.3),  # many small ones; in the codec they have layer scales
)
_KINDS = (
    (r"(embeddings\.weight|codebook\.weight|weight_v)$", spread()),
    (r"weight_g$", length),
    (r"gamma$", around(0.3, 0.03)),  # of residual branches
    (r"alpha$", around(1, 0.2)),
    (r"bias$", spread(0.05)),
    (VECTOR, around(1, 0.1)),  # norms
)


def _fan_in(name: str, sizes: Sizes) -> float:
    return sizes[0] if ".upsample." in name and len(sizes) == 3 and sizes[1] > 1 else math.prod(sizes[1:])


_TABLE = Gains(_KINDS, _GAINS, _fan_in)


def model_shapes(checkpoint: Checkpoint) -> Shapes:
    """Names and shapes of the two transformers' tensors; the folder has its config.json."""
    with torch.device("meta"):
        slow, fast = SlowTransformer(checkpoint.config), FastTransformer(checkpoint.config)
    return checkpoint.sources(slow, SLOW) | checkpoint.sources(fast, FAST)


def random_tensor(name: str, shape: Sizes, seed: int) -> Tensor:
    """The tensor `name`, float32; its values depend on the arguments alone."""
    if name == f"{SLOW}embeddings.weight":
        # It is the head, too. A frame's codebooks weigh far more: else the token that was read would win again.
        return noise_of(name, shape, seed) * (LOGITS / math.sqrt(shape[1]))
    return _TABLE(name, shape, seed)
