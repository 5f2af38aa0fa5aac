"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from voice_clone.array_kinds import Numbers, in_dtype_of, in_kind_of
from voice_clone.autoregressive.native_parts import NativeParts
from voice_clone.autoregressive.stack.native_stack import add_embeddings
from voice_clone.autoregressive.stack.protocol import Stack, StackConfig
from voice_clone.autoregressive.talker import Prefix
from voice_clone.autoregressive.whole_prompt import WholePrompts
from voice_clone.families.voxtral.checkpoint import BACKBONE, FLOW, TABLES, Checkpoint, padded
from voice_clone.families.voxtral.config import SPECIAL_IDS, VoxtralConfig
from voice_clone.families.voxtral.family import CARD
from voice_clone.families.voxtral.flow_head import Flow, FlowHead, SamplingParameters, embedded_times
from voice_clone.families.voxtral.native_flow import native_flow
from voice_clone.families.voxtral.prompt import CODES, NO_PRESET, Prompt, Tokenizer, read
from voice_clone.lru_cache import digest
from voice_clone.native.arrays import Array
from voice_clone.native.matrix.linear import PackedLinear
from voice_clone.native.matrix.weights import as_float32, pack
from voice_clone.settings import TalkerSettings
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.talker import CardTalker

if TYPE_CHECKING:  # native code does without torch
    from voice_clone.families.voxtral.talker_network import TalkerNetwork


def layout(config: VoxtralConfig) -> StackConfig:
    """Of the backbone."""
    return StackConfig(
        hidden_size=config.dim,
        intermediate_size=config.hidden_dim,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.norm_eps,
        rope_theta=config.rope_theta,
        qk_norm=False,
    )


class Talker(WholePrompts[Prompt]):
    """Both networks with their tables, of tensors or of arrays.

    Args:
        config: of the checkpoint.
        stack: the backbone.
        table: the embeddings of all tokens [tokens, C]; of any dtype, on any device.
        embed_ids: ids of all codebooks, int64 [N, K] -> the sums of their embeddings [N, C].
        head: makes frames.

    Attributes:
        voices: embeddings of the checkpoint's own voices [positions, C], in the order of `VoxtralConfig.presets`.
    """

    config: VoxtralConfig

    def __init__(
        self,
        config: VoxtralConfig,
        stack: Stack,
        table: Numbers,
        embed_ids: Callable[[Numbers], Numbers],
        head: FlowHead,
    ) -> None:
        self.config, self.stack, self.head = config, stack, head
        self._table, self._embed_ids = table, embed_ids
        self.voices: list[Numbers] = []

    def set_voices(self, voices: Mapping[str, Array]) -> None:
        """Keep the checkpoint's own voices: in their file, or on the device of torch's stack."""
        like, self.voices = self.stack.like, [voices[name] for name in self.config.presets]
        if not isinstance(like, np.ndarray):
            self.voices = [in_dtype_of(like, in_kind_of(like, as_float32(each))) for each in self.voices]

    def prompt_length(self, prompt: Prompt) -> int:
        return self._voice_end(prompt) + len(prompt.text_ids)

    def prefix(self, prompt: Prompt) -> Prefix:
        return Prefix(digest(prompt.before_voice, prompt.preset, prompt.codec_codes), self._voice_end(prompt))

    def prompt_rows(self, prompt: Prompt) -> list[Numbers]:
        before, behind = (self.rows_of(self._table, ids) for ids in (prompt.before_voice, prompt.text_ids))
        return [before, self._embed_voice(prompt), behind]

    def embed_frames(self, payload: Numbers) -> Numbers:
        """Codes int64 [N, K] -> [N, C]."""
        return self._embed_ids(payload + SPECIAL_IDS)

    def _voice_end(self, prompt: Prompt) -> int:
        """Positions of a prompt up to the end of its voice."""
        preset = int(prompt.preset[0])
        voice = prompt.codec_codes if preset < 0 else self.voices[preset]
        return len(prompt.before_voice) + len(voice)

    def _embed_voice(self, prompt: Prompt) -> Numbers:
        preset = int(prompt.preset[0])
        if preset >= 0:
            voice = self.voices[preset]
            return as_float32(voice) if isinstance(voice, np.ndarray) else voice
        return self._embed_ids(self.numbers(prompt.codec_codes.astype(np.int64)))


def native_talker(config: VoxtralConfig, tokenizer: Tokenizer, parts: NativeParts) -> Talker:
    """The talker as native code."""
    flow, acoustic, (semantic, level, *_) = config.flow, config.audio.n_acoustic_codebook, config.id_limits
    rows = padded(sum(config.id_limits)), config.dim
    ids = parts.read("tables.audio_codebook_embeddings.embeddings.weight", rows)
    ids = as_float32(ids) if ids.dtype == np.float16 else ids  # which native code does not know

    def embed_ids(found: Array) -> Array:
        embedded = np.empty((len(found), config.dim), np.float32)
        add_embeddings(ids[:semantic], ids[semantic:], level, found, embedded)
        return embedded

    def linear(name: str, inputs: int, outputs: int) -> PackedLinear:
        return parts.linear({f"flow.{name}": outputs}, inputs, bias=False)

    def make_times() -> list[Array]:
        weight = parts.read("flow.time_projection.weight", (flow.dim, flow.dim))
        return [PackedLinear(pack(weight, "fp32"), flow.dim)(embedded_times(flow.n_decoding_steps, flow.dim))]

    [times] = parts.packed.part("times")(make_times)
    made = Flow(
        linear("llm_projection", flow.input_dim, flow.dim),
        linear("input_projection", acoustic, flow.dim),
        native_flow(flow, parts),
        linear("acoustic_codebook_output", flow.dim, acoustic),
        lambda: times,
    )
    head = FlowHead(config, linear("semantic_codebook_output", flow.dim, 1 + config.audio.semantic_codebook_size), made)
    table = parts.read("tables.tok_embeddings.weight", (config.vocab_size, config.dim))
    return Talker(config, parts.stack("backbone", layout(config)), table, embed_ids, head)


CLONED = np.array([NO_PRESET], np.int32)


class VoxtralTalker(CardTalker[VoxtralConfig, Tokenizer, Prompt]):
    """The talker of a checkpoint, with the checkpoint's voices."""

    card, prompt, sampling, files = CARD, Prompt, SamplingParameters, Checkpoint
    places = (
        TalkerPart(place="backbone.", prefix=BACKBONE, layers=("layers.",)),
        TalkerPart(  # a prompt needs a few rows of the tables, a frame a few of the second one
            place="tables.",
            prefix=TABLES,
            layers=(),
            in_file=("tok_embeddings.weight",),
            in_file_on_cpu=("audio_codebook_embeddings.embeddings.weight",),
        ),
        TalkerPart(place="flow.", prefix=FLOW, layers=("layers.",)),
    )
    read, native_talker = staticmethod(read), staticmethod(native_talker)

    @classmethod
    def network(cls, config: VoxtralConfig, tokenizer: Tokenizer) -> TalkerNetwork:
        from voice_clone.families.voxtral.talker_network import TalkerNetwork

        return TalkerNetwork(config)

    @classmethod
    def frame_rate(cls, config: VoxtralConfig) -> float:
        return config.frame_rate

    @classmethod
    def fill_network(cls, settings: TalkerSettings, config: VoxtralConfig, tokenizer: Tokenizer) -> Talker:
        talker: Talker = super().fill_network(settings, config, tokenizer)
        talker.set_voices(Checkpoint(settings.checkpoint_dir).voices())
        return talker

    def prompt_of(self, transcript: str, artifacts: Artifacts) -> Prompt:
        return Prompt(self.tokenizer.before_voice, self.tokenizer.text_ids("a"), CLONED, artifacts[CODES])


load_network, load_talker = VoxtralTalker.load_network, VoxtralTalker.load
load_torch_network = VoxtralTalker.load_torch_network
