"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.to_native import Load, layer_loader, native_stack
from voice_clone.autoregressive.talker import Prefix
from voice_clone.autoregressive.talker_module import TalkerModule
from voice_clone.families.voxtral.checkpoint import BACKBONE, FLOW, TABLES, Checkpoint, padded
from voice_clone.families.voxtral.config import SPECIAL_IDS, VoxtralConfig
from voice_clone.families.voxtral.family import CARD
from voice_clone.families.voxtral.flow_head import FlowHead, FlowLayer, FlowTransformer, SamplingParameters
from voice_clone.families.voxtral.prompt import CODES, NO_PRESET, Prompt, Tokenizer, read
from voice_clone.layers.fused import empty_table
from voice_clone.layers.graphs import CachedOnGpu, to_device
from voice_clone.lru_cache import digest
from voice_clone.native.matrix.linear_module import use_native_linears
from voice_clone.native.matrix.weights import head_precision
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.settings import Precision, TalkerSettings
from voice_clone.stages.known_voices import Artifacts
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.talker import CardTalker

OTHERS = ("semantic_codebook_output", "llm_projection", "input_projection", "acoustic_codebook_output")
"""The flow head's projections outside its layers, but for that of the time."""


class Tables(nn.Module):
    """Embeddings of tokens, and of the ids of all codebooks one behind the other."""

    def __init__(self, config: VoxtralConfig) -> None:
        super().__init__()
        self.tok_embeddings = empty_table(config.vocab_size, config.dim)
        self.audio_codebook_embeddings = nn.ModuleDict(
            {"embeddings": empty_table(padded(sum(config.id_limits)), config.dim)}
        )

    @property
    def ids(self) -> nn.Embedding:
        """Of the ids of codebooks."""
        table = self.audio_codebook_embeddings["embeddings"]
        assert isinstance(table, nn.Embedding)
        return table


class Talker(TalkerModule[Prompt]):
    """Both networks with their tables.

    Attributes:
        head: a `FlowHead`.
        voices: embeddings of the checkpoint's own voices [positions, C], in the order of `VoxtralConfig.presets`.
    """

    layers = "backbone"
    config: VoxtralConfig

    def __init__(self, config: VoxtralConfig) -> None:
        super().__init__(config)
        self.backbone = DecoderStack(
            StackConfig(
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
        )
        self.tables = Tables(config)
        self.flow = FlowTransformer(config)
        self.head = FlowHead(self.flow, config)
        self.voices: list[Tensor] = []
        self._starts: CachedOnGpu[Tensor] = CachedOnGpu()  # of the codebooks' tables, each a row

    def set_voices(self, voices: Mapping[str, Tensor]) -> None:
        """Keep the checkpoint's own voices on the device of the stack."""
        like = self.stack.like
        self.voices = [voices[name].to(like.device, like.dtype) for name in self.config.presets]

    def prompt_length(self, prompt: Prompt) -> int:
        return self._voice_end(prompt) + len(prompt.text_ids)

    def prefix(self, prompt: Prompt) -> Prefix:
        return Prefix(digest(prompt.before_voice, prompt.preset, prompt.codec_codes), self._voice_end(prompt))

    def prompt_rows(self, prompt: Prompt) -> list[Tensor]:
        table = self.tables.tok_embeddings.weight
        before, behind = (self.rows_of(table, ids) for ids in (prompt.before_voice, prompt.text_ids))
        return [before, self._embed_voice(prompt), behind]

    def embed_frames(self, payload: Tensor) -> Tensor:
        """Codes int64 [N, K] -> [N, C]."""
        return self._embed_ids(payload + SPECIAL_IDS)

    def _voice_end(self, prompt: Prompt) -> int:
        """Positions of a prompt up to the end of its voice."""
        preset = int(prompt.preset[0])
        voice = prompt.codec_codes if preset < 0 else self.voices[preset]
        return len(prompt.before_voice) + len(voice)

    def _embed_voice(self, prompt: Prompt) -> Tensor:
        preset = int(prompt.preset[0])
        if preset >= 0:
            return self.voices[preset]
        ids = torch.from_numpy(prompt.codec_codes.astype(np.int64))
        return self._embed_ids(to_device(ids, self.stack.like.device))

    def _embed_ids(self, ids: Tensor) -> Tensor:
        """Ids int64 [N, K] -> the sums of their embeddings [N, C]."""
        table, (semantic, *acoustic) = self.tables.ids, self.config.id_limits
        starts = self._starts.get(
            table.weight,
            lambda: F.pad(torch.arange(len(acoustic), device=ids.device) * acoustic[0] + semantic, (1, 0)),
        )
        rows: Tensor = table(ids + starts).to(self.stack.like.dtype).sum(1)
        return rows


def use_native_code(
    talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> Talker:
    """Replace the layers and projections of a talker by native code: a `UseNativeCode`."""
    flow = talker.flow
    flow.times()  # while its projection is there
    del flow.time_projection
    talker.native_stack = native_stack(
        talker.backbone, precision, layer_loader(load, "backbone"), packed.part("backbone")
    )
    for number, layer in enumerate(flow.layers):
        assert isinstance(layer, FlowLayer)
        for owner, part, projections in (
            (layer.self_attn, "self_attn", ("qkv_proj", "o_proj")),
            (layer.mlp, "mlp", ("gate_up_proj", "down_proj")),
        ):
            name = f"flow.layers.{number}.{part}"
            fill = None if load is None else partial(load, owner, name)
            use_native_linears(owner, projections, precision, packed.part(name), fill)
    use_native_linears(flow, OTHERS, head_precision(precision), packed.part("flow"))
    packed.keep()
    return talker


CLONED = np.array([NO_PRESET], np.int32)


class VoxtralTalker(CardTalker[VoxtralConfig, Tokenizer, Prompt]):
    """The talker of a checkpoint, with the checkpoint's voices."""

    card, prompt, sampling, talker, files = CARD, Prompt, SamplingParameters, Talker, Checkpoint
    read, native_code = staticmethod(read), staticmethod(use_native_code)

    @classmethod
    def frame_rate(cls, config: VoxtralConfig) -> float:
        return config.frame_rate

    @classmethod
    def parts(cls, config: VoxtralConfig) -> list[TalkerPart]:
        projections = tuple(f"layers.{n}.{part}." for n in range(config.flow.n_layers) for part in ("self_attn", "mlp"))
        return [
            TalkerPart(place="backbone.", prefix=BACKBONE, layers=("layers.",)),
            TalkerPart(  # a prompt needs a few rows of the tables, a frame a few of the second one
                place="tables.",
                prefix=TABLES,
                layers=(),
                in_file=("tok_embeddings.weight",),
                in_file_on_cpu=("audio_codebook_embeddings.embeddings.weight",),
            ),
            TalkerPart(place="flow.", prefix=FLOW, layers=projections),  # its norms are no native code
        ]

    @classmethod
    def fill_network(cls, settings: TalkerSettings, config: VoxtralConfig, tokenizer: Tokenizer) -> Talker:
        talker: Talker = super().fill_network(settings, config, tokenizer)
        talker.set_voices(Checkpoint(settings.checkpoint_dir).voices())
        return talker

    def prompt_of(self, transcript: str, artifacts: Artifacts) -> Prompt:
        return Prompt(self.tokenizer.before_voice, self.tokenizer.text_ids("a"), CLONED, artifacts[CODES])


load_network, load_talker = VoxtralTalker.load_network, VoxtralTalker.load
