"""The prompt to frames of latents: a `voice_clone.stages.protocols.TalkerStage`.

Positions: a row that begins the voice, the clip, the text, a row that begins the speech, its frames. Source: pocket-tts
4.0.1, `models/flow_lm.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from voice_clone.array_kinds import Numbers
from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.autoregressive.stack.protocol import Stack, StackConfig
from voice_clone.autoregressive.talker import Prefix, TalkerRequest
from voice_clone.autoregressive.whole_prompt import WholePrompts
from voice_clone.families.pocket_tts.checkpoint import TALKER, Checkpoint
from voice_clone.families.pocket_tts.config import HeadConfig, PocketConfig
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.families.pocket_tts.head import (
    Block,
    Flow,
    LatentHead,
    Linear,
    SamplingParameters,
    TimeWeights,
    time_table,
)
from voice_clone.families.pocket_tts.prompt import END_THRESHOLD, LATENTS, STEPS, Prompt, Tokenizer, check_steps, read
from voice_clone.lru_cache import digest
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.native.matrix.weights import as_float32
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.protocols import Arrays
from voice_clone.stages.talker import CardTalker

if TYPE_CHECKING:  # native code does without torch
    from voice_clone.families.pocket_tts.talker_network import TalkerNetwork

FREQUENCIES = 256  # numbers of a time, before the network


def layout(config: PocketConfig) -> StackConfig:
    """Of the decoder stack."""
    sizes = config.flow_lm.transformer
    return StackConfig(
        hidden_size=sizes.d_model,
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


def modulated(config: HeadConfig, prefix: str) -> dict[str, int]:
    """The names of the linear layers that are `Flow.modulation`, and their outputs."""
    blocks = {f"{prefix}res_blocks.{number}.adaLN_modulation.1": 3 * config.dim for number in range(config.depth)}
    return {**blocks, f"{prefix}final_layer.adaLN_modulation.1": 2 * config.dim}


class Talker(WholePrompts[Prompt]):
    """The talker, of tensors or of arrays.

    Args:
        config: of the checkpoint.
        stack: of torch, or native.
        table: of text tokens; of any dtype, on any device.
        project: its rows to those of the stack; None: they are.
        voice: latents of a clip [n, V] to rows of the stack.
        frames: as of `embed_frames`.
        begin: in place of a frame, where speech begins [1, W].
        before_voice: a row before the voice [1, C], or None.
        head: makes frames.
    """

    min_frames = 6  # an earlier end means nothing: speech may not have begun

    def __init__(
        self,
        config: PocketConfig,
        stack: Stack,
        table: Numbers,
        project: Linear | None,
        voice: Linear,
        frames: Linear,
        begin: Numbers,
        before_voice: Numbers | None,
        head: LatentHead,
    ) -> None:
        self.config, self.stack, self.head = config, stack, head
        self.embed_frames = frames  # latents [N, W] -> [N, C]
        self._table, self._project, self._voice = table, project, voice
        self._begin, self._before_voice = begin, before_voice

    def prompt_length(self, prompt: Prompt) -> int:
        return self._voice_end(prompt) + len(prompt.text_ids) + 1

    def prefix(self, prompt: Prompt) -> Prefix:
        return Prefix(digest(prompt.latents), self._voice_end(prompt))

    def prompt_rows(self, prompt: Prompt) -> list[Numbers]:
        text = self.rows_of(self._table, prompt.text_ids)
        if self._project is not None:
            text = self._project(text)
        voice = self._voice(self.numbers(np.array(prompt.latents)))
        before = [] if self._before_voice is None else [self._before_voice]
        return [*before, voice, text, self.embed_frames(self._begin)]

    def _voice_end(self, prompt: Prompt) -> int:
        return int(self.config.flow_lm.insert_bos_before_voice) + len(prompt.latents)


def native_talker(config: PocketConfig, tokenizer: Tokenizer, parts: NativeParts) -> Talker:
    """The talker as native code."""
    sizes, head, frame = config.flow_lm, config.flow_lm.flow, config.mimi.quantizer.dimension
    size, table, inner = sizes.transformer.d_model, sizes.lookup_table, head.dim
    hidden, net = sizes.z_dim or size, "flow_net."
    begin = as_float32(parts.read("bos_emb", (frame,)))[None]
    before = as_float32(parts.read("bos_before_voice", (1, 1, size)))[0] if sizes.insert_bos_before_voice else None

    def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> PackedLinear:
        return parts.linear({name: outputs}, inputs, bias)

    def floats(name: str, *shape: int) -> Array:
        return as_float32(parts.read(net + name, shape))

    def block(name: str) -> Block:
        norm = floats(f"{name}.in_ln.weight", inner), floats(f"{name}.in_ln.bias", inner)
        return Block(norm, (linear(f"{net}{name}.mlp.0", inner, inner), linear(f"{net}{name}.mlp.2", inner, inner)))

    def time_weights(name: str) -> TimeWeights:
        first = floats(f"{name}.mlp.0.weight", inner, FREQUENCIES), floats(f"{name}.mlp.0.bias", inner)
        second = floats(f"{name}.mlp.2.weight", inner, inner), floats(f"{name}.mlp.2.bias", inner)
        return TimeWeights(
            floats(f"{name}.freqs", FREQUENCIES // 2), first, second, floats(f"{name}.mlp.3.alpha", inner)
        )

    @cache
    def times() -> tuple[Array, Array]:
        return time_table(time_weights("time_embed.0"), time_weights("time_embed.1"))

    flow = Flow(
        head.type,
        linear(f"{net}cond_embed", hidden, inner),
        parts.linear(modulated(head, net), inner),
        linear(f"{net}input_proj", frame, inner),
        [block(f"res_blocks.{number}") for number in range(head.depth)],
        linear(f"{net}final_layer.linear", inner, frame),
        times,
    )
    narrow = linear("z_proj", size, sizes.z_dim, bias=False) if sizes.z_dim else None
    return Talker(
        config,
        parts.stack("backbone", layout(config)),
        parts.read("conditioner.embed.weight", (table.n_bins + 1, table.rank or size)),
        linear("conditioner.proj", table.rank, size, bias=False) if table.rank else None,
        linear("speaker_proj", config.mimi.voice_width, size, bias=False),
        linear("input_linear", frame, size, bias=False),
        begin,
        before,
        LatentHead(config, narrow, flow, linear("out_eos", hidden, 1)),
    )


class PocketTalker(CardTalker[PocketConfig, Tokenizer, Prompt]):
    """The talker of a checkpoint."""

    card, prompt, sampling, files = CARD, Prompt, SamplingParameters, Checkpoint
    places = (TalkerPart(place="", prefix=TALKER, layers=("backbone.layers.",), in_file=("conditioner.embed.weight",)),)
    read, native_talker = staticmethod(read), staticmethod(native_talker)

    @classmethod
    def network(cls, config: PocketConfig, tokenizer: Tokenizer) -> TalkerNetwork:
        from voice_clone.families.pocket_tts.talker_network import TalkerNetwork

        return TalkerNetwork(config)

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
