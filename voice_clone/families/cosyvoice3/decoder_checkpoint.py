"""The weights of the flow and the vocoder in a checkpoint folder: how their official names and layouts become ours."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from voice_clone.checkpoint import CheckpointFiles, Source, as_it_is
from voice_clone.checkpoint_folder import check_converted
from voice_clone.families.cosyvoice3.config import FLOW, HIFT, check_mark
from voice_clone.families.cosyvoice3.decoder_config import FlowConfig, VocoderConfig, flow_config, vocoder_config
from voice_clone.families.cosyvoice3.networks.flow import FlowNetwork
from voice_clone.families.cosyvoice3.networks.vocoder import Vocoder
from voice_clone.stages.loading import empty

_ESTIMATOR = "decoder.estimator."
_CONVS = f"{_ESTIMATOR}input_embed.conv_pos_embed.conv"
_PITCH_CONV = re.compile(r"^f0_predictor\.condnet\.(\d+)\.")


class FlowFiles(CheckpointFiles):
    """The weights in flow.safetensors."""

    names = (
        (r"^speaker\.", "spk_embed_affine_layer."),
        (r"^look_ahead\.", "pre_lookahead_layer."),
        (r"^noise$", "decoder.rand_noise"),
        (r"^time_mlp\.0\.", f"{_ESTIMATOR}time_embed.time_mlp.0."),
        (r"^time_mlp\.1\.", f"{_ESTIMATOR}time_embed.time_mlp.2."),
        (r"^proj\.", f"{_ESTIMATOR}input_embed.proj."),
        (r"^convs\.0\.", f"{_CONVS}1.0."),
        (r"^convs\.1\.", f"{_CONVS}2.0."),
        (r"^final\.", f"{_ESTIMATOR}proj_out."),
        (r"^final_modulation\.", f"{_ESTIMATOR}norm_out.linear."),
        (r"^layers\.(\d+)\.", rf"{_ESTIMATOR}transformer_blocks.\1."),
        (r"\.modulation\.", ".attn_norm.linear."),
        (r"\.out\.", ".attn.to_out.0."),
        (r"\.up\.", ".ff.ff.0.0."),
        (r"\.down\.", ".ff.ff.2."),
    )

    def source(self, name: str, shape: tuple[int, ...]) -> Source:
        name = self.official(name)
        if ".qkv." in name:
            third = (shape[0] // 3, *shape[1:])
            return Source({name.replace("qkv", f"attn.to_{part}"): third for part in "qkv"}, _joined)
        if name == "decoder.rand_noise":
            return Source({name: (1, shape[1], shape[0])}, _frames_first)
        return Source({name: shape}, as_it_is)


class VocoderFiles(CheckpointFiles):
    """The weights in hift.safetensors."""

    def source(self, name: str, shape: tuple[int, ...]) -> Source:
        if name == "source_noise":
            return Source({"m_source.l_sin_gen.sine_waves": (1, *shape)}, _only)
        if name.endswith(".alpha"):
            return Source({name: (shape[1],)}, _channels)
        name = name.replace("sine_weights", "m_source.l_linear")
        name = _PITCH_CONV.sub(lambda found: f"f0_predictor.condnet.{2 * int(found[1])}.", name)
        stem = name.replace(".conv.", ".")
        if name.endswith(".conv.weight") and not name.startswith("source_downs"):
            normed = f"{stem.removesuffix('weight')}parametrizations.weight.original"
            return Source({f"{normed}0": (shape[0], 1, 1), f"{normed}1": shape}, _fold)
        return Source({stem: shape}, as_it_is)


class DecoderCheckpoint:
    """A checkpoint folder with flow.safetensors and hift.safetensors.

    Raises:
        CheckpointError: a file is missing, not converted, or not that of such a network.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        check_mark(folder)
        for file in (FLOW, HIFT):
            check_converted(folder, file, f"{file}.pt")
        self._flow, self._vocoder = FlowFiles(folder), VocoderFiles(folder)
        self.flow_config: FlowConfig = flow_config(self._flow.shapes(FLOW))
        self.vocoder_config: VocoderConfig = vocoder_config(self._vocoder.shapes(HIFT))

    def load_flow(self, dtype: torch.dtype, device: torch.device) -> FlowNetwork:
        """Load the flow to a device; `dtype` is that in which its products are computed."""
        network = empty(lambda: FlowNetwork(self.flow_config)).eval()
        self._flow.load(network, FLOW, "", torch.float32, device)
        network.requires_grad_(False).compute_in(dtype)
        return network

    def load_vocoder(self, device: torch.device) -> Vocoder:
        """Load the vocoder in fp32, and its pitch network in fp64."""
        network = empty(lambda: Vocoder(self.vocoder_config)).eval()
        pitch = "f0_predictor."
        self._vocoder.load(network, HIFT, "", torch.float32, device, without=(pitch,))
        self._vocoder.load(network.f0_predictor, HIFT, pitch, torch.float64, device)
        return network.requires_grad_(False)


def _joined(*parts: Tensor) -> Tensor:
    return torch.cat(parts)


def _frames_first(noise: Tensor) -> Tensor:
    return noise[0].T.contiguous()


def _only(table: Tensor) -> Tensor:
    return table[0]


def _channels(alpha: Tensor) -> Tensor:
    return alpha.view(1, -1, 1)


def _fold(length: Tensor, direction: Tensor) -> Tensor:
    """Return a weight-normed weight (Salimans & Kingma 2016) in fp64, in which the pitch network computes."""
    wide = direction.double()
    weight: Tensor = wide * (length.double() / torch.linalg.vector_norm(wide.flatten(1), dim=1)[:, None, None])
    return weight
