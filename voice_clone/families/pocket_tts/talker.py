"""The prompt to frames of latents: a `voice_clone.stages.protocols.TalkerStage`.

Positions: a row that begins the voice, the clip, the text, a row that begins the speech, its frames. Source: pocket-tts
4.0.1, `models/flow_lm.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.to_native import Load, layer_loader, native_stack
from voice_clone.autoregressive.talker import Prefix, TalkerRequest
from voice_clone.autoregressive.talker_module import TalkerModule
from voice_clone.families.pocket_tts.checkpoint import TALKER, Checkpoint
from voice_clone.families.pocket_tts.config import PocketConfig
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.families.pocket_tts.head import FlowNetwork, LatentHead, SamplingParameters
from voice_clone.families.pocket_tts.prompt import END_THRESHOLD, LATENTS, STEPS, Prompt, Tokenizer, check_steps, read
from voice_clone.layers.fused import empty_table
from voice_clone.layers.graphs import to_device
from voice_clone.lru_cache import digest
from voice_clone.native.matrix.linear_module import use_native_linears
from voice_clone.native.matrix.weights import head_precision
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.settings import Precision
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.protocols import Arrays
from voice_clone.stages.talker import CardTalker


class Talker(TalkerModule[Prompt]):
    """All networks of the talker."""

    layers, min_frames = "backbone", 6  # an earlier end means nothing: speech may not have begun
    config: PocketConfig

    def __init__(self, config: PocketConfig) -> None:
        super().__init__(config)
        sizes, table, frame = config.flow_lm.transformer, config.flow_lm.lookup_table, config.mimi.quantizer.dimension
        size, z_dim = sizes.d_model, config.flow_lm.z_dim
        self.backbone = DecoderStack(
            StackConfig(
                hidden_size=size,
                intermediate_size=sizes.inner,
                num_hidden_layers=sizes.num_layers,
                num_attention_heads=sizes.num_heads,
                num_key_value_heads=sizes.kv_heads,
                head_dim=sizes.queries // sizes.num_heads,
                rms_norm_eps=1e-5,
                rope_theta=sizes.max_period,
                qk_norm=False,
                norm="layer",
                mlp="gelu_tanh",
            )
        )
        self.conditioner = nn.ModuleDict({"embed": empty_table(table.n_bins + 1, table.rank or size)})
        if table.rank:
            self.conditioner["proj"] = nn.Linear(table.rank, size, bias=False)
        self.speaker_proj: nn.Module = nn.Linear(config.mimi.voice_width, size, bias=False)
        self.input_linear: nn.Module = nn.Linear(frame, size, bias=False)
        self.bos_emb = nn.Parameter(torch.zeros(frame))
        if config.flow_lm.insert_bos_before_voice:
            self.bos_before_voice = nn.Parameter(torch.zeros(1, 1, size))
        self.z_proj: nn.Module | None = nn.Linear(size, z_dim, bias=False) if z_dim else None
        self.out_eos: nn.Module = nn.Linear(z_dim or size, 1)
        self.flow_net = FlowNetwork(config.flow_lm.flow, frame, z_dim or size)
        self.head = LatentHead(self, config)

    def prompt_length(self, prompt: Prompt) -> int:
        return self._voice_end(prompt) + len(prompt.text_ids) + 1

    def prefix(self, prompt: Prompt) -> Prefix:
        return Prefix(digest(prompt.latents), self._voice_end(prompt))

    def prompt_rows(self, prompt: Prompt) -> list[Tensor]:
        like = self.stack.like
        latents = to_device(torch.from_numpy(np.array(prompt.latents)), like.device).to(like.dtype)
        table: Any = self.conditioner["embed"]
        text = self.rows_of(table.weight, prompt.text_ids)
        if "proj" in self.conditioner:
            text = self.conditioner["proj"](text)
        parts = [self.speaker_proj(latents), text, self.embed_frames(self.bos_emb[None])]
        return [self.bos_before_voice[0], *parts] if self.config.flow_lm.insert_bos_before_voice else parts

    def embed_frames(self, payload: Tensor) -> Tensor:
        """Latents [N, W] -> [N, C]."""
        rows: Tensor = self.input_linear(payload.to(self.stack.like.dtype))
        return rows

    def _voice_end(self, prompt: Prompt) -> int:
        """Positions of a prompt up to the end of its voice."""
        return int(self.config.flow_lm.insert_bos_before_voice) + len(prompt.latents)


def use_native_code(
    talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> Talker:
    """Replace the layers and projections of a talker by native code: a `UseNativeCode`."""
    network, least = talker.flow_net, head_precision(precision)
    talker.native_stack = native_stack(
        talker.backbone, precision, layer_loader(load, "backbone"), packed.part("backbone")
    )
    own = ["speaker_proj", "input_linear", "out_eos", *(["z_proj"] if talker.z_proj is not None else [])]
    use_native_linears(talker, own, least, packed.part("projections"))
    if "proj" in talker.conditioner:
        use_native_linears(talker.conditioner, ("proj",), least, packed.part("text"))
    use_native_linears(network, ("cond_embed", "input_proj", "modulation"), least, packed.part("flow_net"))
    for number, block in enumerate(network.res_blocks):
        use_native_linears(block.get_submodule("mlp"), ("0", "2"), least, packed.part(f"flow_net {number}"))
    use_native_linears(network.final_layer, ("linear",), least, packed.part("flow_net last"))
    packed.keep()
    return talker


class PocketTalker(CardTalker[PocketConfig, Tokenizer, Prompt]):
    """The talker of a checkpoint."""

    card, prompt, sampling, talker, files = CARD, Prompt, SamplingParameters, Talker, Checkpoint
    places = (TalkerPart(place="", prefix=TALKER, layers=("backbone.layers.",), in_file=("conditioner.embed.weight",)),)
    read, native_code = staticmethod(read), staticmethod(use_native_code)

    @classmethod
    def frame_rate(cls, config: PocketConfig) -> float:
        return config.mimi.frame_rate

    def request(self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]) -> TalkerRequest[Prompt]:
        check_steps(self.config, options.get(STEPS))
        request = super().request(tensors, knobs, options)
        return replace(request, frames_after_end=int(request.prompt.frames_after_end[0]))

    def sampling_of(self, knobs: Mapping[str, Any], options: Mapping[str, Any]) -> SamplingParameters:
        config = self.config
        usual = {"temperature": config.default_temperature, END_THRESHOLD: config.default_eos_threshold}
        sampling: SamplingParameters = super().sampling_of({**usual, **knobs}, options)
        return sampling

    def prompt_of(self, transcript: str, artifacts: Artifacts) -> Prompt:
        return Prompt(self.tokenizer.text_ids("a"), np.array([0], np.int32), artifacts[LATENTS])

    @property
    def voice_width(self) -> int:
        return self.config.mimi.voice_width


load_network, load_talker = PocketTalker.load_network, PocketTalker.load
