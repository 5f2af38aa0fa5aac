"""The names and shapes of the tensors in llm.pt, flow.pt and hift.pt, by the sizes of their networks."""

from __future__ import annotations

from pathlib import Path

import torch

from voice_clone.families.cosyvoice3.config import TalkerConfig
from voice_clone.families.cosyvoice3.decoder_checkpoint import FlowFiles, VocoderFiles
from voice_clone.families.cosyvoice3.decoder_config import FlowConfig, VocoderConfig
from voice_clone.families.cosyvoice3.networks.flow import FlowNetwork
from voice_clone.families.cosyvoice3.networks.talker import TalkerNetwork
from voice_clone.families.cosyvoice3.networks.vocoder import Vocoder
from voice_clone.families.cosyvoice3.talker import PARTS
from voice_clone_server.families.cosyvoice3.fixed_noise import FLOW_NOISE, SOURCE_NOISE_NAME
from voice_clone_server.families.pickles import Shapes

LM_HEAD = "llm.model.lm_head.weight"  # the table of text tokens once more, which nothing uses
GENERATOR = "generator."  # before the names of the released vocoder


def llm_shapes(config: TalkerConfig) -> Shapes:
    """Names and shapes of all tensors in llm.pt."""
    with torch.device("meta"):
        talker = TalkerNetwork(config)
    found: Shapes = {LM_HEAD: (config.vocab_size, config.hidden_size)}
    for part in PARTS:
        for name, tensor in talker.get_submodule(part.place.rstrip(".")).state_dict().items():
            found[part.prefix + name] = tuple(tensor.shape)
    return found


def flow_shapes(config: FlowConfig) -> Shapes:
    """Names and shapes of the tensors in flow.pt, except for the rotary table."""
    with torch.device("meta"):
        shapes = FlowFiles(Path()).sources(FlowNetwork(config))
    return {name: shape for name, shape in shapes.items() if name != FLOW_NOISE}


def vocoder_shapes(config: VocoderConfig) -> Shapes:
    """Shapes of the tensors in hift.pt by their names without `GENERATOR`."""
    with torch.device("meta"):
        shapes = VocoderFiles(Path()).sources(Vocoder(config))
    return {name: shape for name, shape in shapes.items() if name != SOURCE_NOISE_NAME}
