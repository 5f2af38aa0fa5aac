"""Random weights under which signals neither vanish nor explode, in any stage and at any size.

Default initialisation would give near silence and one repeated code, on which any two programs agree. The recipe: a
layer's output has about the power of its input; the first layer scales raw input (log-mel frames, waveform) to unit
size; a residual branch adds a fraction, so that the input still has an effect after the last layer.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from tools.families.gains import VECTOR, Gains, Sizes, around, spread
from tools.families.qwen3_tts.checkpoint_config import CODEC_EOS
from tools.families.weight_files import Shapes, noise_of
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.families.qwen3_tts.networks.talker import Talker

# Gain by name; the first pattern found counts, else 1. A layer of gain 1 keeps the power of what it reads.
_GAINS = (
    # Transformers, without the codec's, whose branches have layer scales: many small branches on the residual.
    (r"^talker.*(o_proj|down_proj)", 0.4),
    (r"^talker.*(codec_head|lm_head)", 2.0),  # logits: spread enough for sampling to choose, and not only one
    (r"^talker\.text_projection\.linear_fc2", 2.0),  # after SiLU
    # Speaker encoder: log-mel frames have a spread of about 3 around their mean, which centred filters remove.
    (r"^speaker_encoder\.blocks\.0\.conv", 0.4),
    (r"^speaker_encoder.*res2net", 1.0),  # each group adds the one before
    (r"^speaker_encoder.*(tdnn|mfa|se_block\.conv1)", 1.4),  # before ReLU
    (r"^speaker_encoder\.fc", 3.0),  # what centring takes away
    # Codec encoder: speech has an RMS near 0.1; ELU takes a part of the power.
    (r"^encoder\.encoder\.layers\.0\.conv", 10.0),
    (r"^encoder\.encoder\.layers\.\d+\.block\.3", 0.5),
    (r"^encoder\.encoder\.layers", 1.3),
    # Codec decoder: residual units, and a waveform far from the clamp.
    (r"^decoder\.decoder\.\d+\.block\.\d\.conv2", 0.3),
    (r"^decoder\.decoder\.[1-9]\d*\.conv", 0.07),
)
# Filters deaf to a constant, where the input has a large one: log-mel frames, powers after ReLU and SnakeBeta.
_CENTRED = re.compile(r"^speaker_encoder\.(blocks\.0\.conv|.*tdnn2|mfa|fc)|^decoder\.decoder\.[1-9]\d*\.conv")
_TRANSPOSED = re.compile(r"^decoder\.(upsample\.\d+\.0|decoder\.\d+\.block\.1)\.conv")  # [in, out, kernel]


def model_shapes(config: Qwen3TTSConfig) -> Shapes:
    """Names and shapes of model.safetensors; Base checkpoints alone have a speaker encoder."""
    with torch.device("meta"):
        shapes = _shapes("talker.", Talker(config))
        if config.kind == "base":
            shapes |= _shapes("speaker_encoder.", SpeakerEncoder(config.speaker_encoder))
    return shapes


def codec_shapes(config: Qwen3TTSConfig) -> Shapes:
    """Names and shapes of speech_tokenizer/model.safetensors, with what the official classes hold but never use."""
    encoder, decoder = config.codec.encoder_config, config.codec.decoder_config
    with torch.device("meta"):
        shapes = _shapes("encoder.", CodecEncoder(encoder, encoder.num_quantizers))
        shapes |= _shapes("decoder.", CodecDecoder(decoder))
    unused: Shapes = {}
    for name, shape in shapes.items():
        if name.endswith("codebook.embed_sum"):
            unused[name.replace("embed_sum", "initialized")] = (1,)
        elif name.startswith("encoder.") and name.endswith("quantizer.input_proj.weight"):
            unused[name.replace("input_proj", "output_proj")] = (shape[1], shape[0], 1)
        elif name.startswith("decoder.") and name.endswith("output_proj.weight") and ".rvq_" in name:
            unused[name.replace("output_proj", "input_proj")] = (shape[1], shape[0], 1)
    return shapes | unused


def _fan_in(name: str, sizes: Sizes) -> float:
    if _TRANSPOSED.search(name):
        # In the upsampling the kernel equals the stride, in the decoder's blocks it is twice that.
        return sizes[0] * (1 if name.startswith("decoder.upsample") else 2)
    return math.prod(sizes[1:])


_TABLE = Gains(
    kinds=(
        (r"initialized$", lambda noise, _: torch.ones(noise.shape)),
        (r"cluster_usage$", lambda noise, _: 0.5 + noise.abs()),
        (r"text_embedding\.weight$", spread()),
        (r"codec_embedding", spread(0.4)),  # sixteen of them make a frame
        (r"\.(scale|gamma)$", around(0.3, 0.03)),  # of residual branches
        (r"\.(alpha|beta)$", spread(0.3)),  # logarithms
        (r"\.bias$", spread(0.05)),
        (VECTOR, around(1, 0.1)),  # norms
    ),
    gains=_GAINS,
    fan_in=_fan_in,
)


def random_tensor(name: str, shape: Sizes, seed: int) -> Tensor:
    """The tensor `name`, float32; its values depend on the arguments alone."""
    noise = noise_of(name, shape, seed)
    if name.endswith(("embed_sum", "embedding_sum")):  # the sum of a code's vectors = its vector x its usage
        usage = random_tensor(name.rpartition(".")[0] + ".cluster_usage", shape[:1], seed)
        # The encoder's nearest code of a unit-size vector must lie in its direction: small vectors leave the choice
        # to the angle and shrink the residual; large ones would make those near zero win always.
        return noise * (0.2 if name.startswith("encoder.") else 0.4) * usage[:, None]
    if name == "talker.codec_head.weight":
        noise[CODEC_EOS] *= 0.85  # speech ends about once in some thousand frames: short runs reach their length
    if _CENTRED.search(name) and len(shape) > 1:
        noise -= noise.mean(dim=tuple(range(1, len(shape))), keepdim=True)
    return _TABLE.fill(name, noise)


def fill_random(module: torch.nn.Module, prefix: str, seed: int) -> None:
    """Give a network random weights; `prefix`: of its names in the checkpoint."""
    tensors = {name: random_tensor(prefix + name, shape, seed) for name, shape in _shapes("", module).items()}
    module.load_state_dict(tensors)


def _shapes(prefix: str, module: torch.nn.Module) -> Shapes:
    return {prefix + name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
