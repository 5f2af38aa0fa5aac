"""What a model's speech costs, apart from the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.codec.native_decoder import NativeWindowedDecoder
from voice_clone.stages.loading import TalkerPart

if TYPE_CHECKING:  # what measures a checkpoint does without torch
    from torch import nn


@dataclass(frozen=True)
class FrameLoad:
    """What the time of a frame follows from, if that of a layer is known.

    Attributes:
        passes: of a frame through the predictor's layers, of one row each.
        codebooks: of a frame.
        decoder_name: alike for models with the same decoder.
        decoder: makes it, with arbitrary weights.
        frame_seconds: of speech.
    """

    passes: int
    codebooks: int
    decoder_name: str
    decoder: Callable[[], NativeWindowedDecoder]
    frame_seconds: float


@dataclass(frozen=True)
class Workload:
    """A model of a family, in one shape.

    Attributes:
        name: as people call it.
        talker, predictor: their layers; those of a flow head are a predictor's, too.
        head_weights: of all output heads that a frame reads.
        table_weights: of embeddings and projections that stay in memory.
        encoder_weights: of the encoders of clips.
        decoder_weights: of the decoder.
        processes: that load torch.
        native_processes: that compute without torch, from their second start on.
        pace: None: it computes otherwise, so that only a checkpoint can be measured.
        positions: of a minute of speech and its prompt.
        other_stream_bytes: that a minute of speech takes besides keys and values, where it is much.
    """

    name: str
    talker: StackConfig
    predictor: StackConfig
    head_weights: int
    table_weights: int
    encoder_weights: int
    decoder_weights: int
    processes: int
    pace: FrameLoad | None
    positions: int = 1000
    other_stream_bytes: int = 0
    native_processes: int = 0


@dataclass(frozen=True)
class Released:
    """The networks of a released model, without weights, on the meta device.

    Attributes:
        name: as people call it.
        talker, parts: the network, and where its weights are.
        encoders, decoder: of clips and of frames; the decoder's weights where it is no module.
        layers: of the talker, then those of its predictor, where they are no `DecoderStack`s.
        positions, other_stream_bytes, pace: as of `Workload`.
    """

    name: str
    talker: nn.Module
    parts: Sequence[TalkerPart]
    encoders: Sequence[nn.Module]
    decoder: nn.Module | int
    positions: int
    layers: tuple[StackConfig, ...] = ()
    other_stream_bytes: int = 0
    pace: FrameLoad | None = None

    def workload(self, encoder_processes: int) -> Workload:
        """What it costs: a table has full numbers, and what is neither table nor layer is a head."""
        from torch.nn import Embedding

        from voice_clone.autoregressive.stack.decoder_stack import DecoderStack

        found = self.layers or tuple(each.config for each in self.talker.modules() if isinstance(each, DecoderStack))
        layers = (*found, replace(found[0], num_hidden_layers=0))[:2]
        in_file = {f"{part.place}{name}" for part in self.parts for name in part.in_file}
        kept = sum(each.numel() for name, each in self.talker.named_parameters() if name not in in_file)
        modules = {f"{name}.weight": each for name, each in self.talker.named_modules()}
        tables = [each for name, each in modules.items() if isinstance(each, Embedding) and name not in in_file]
        table_weights = sum(map(weights, tables))
        processes = 2 + encoder_processes  # talker and code2wav, too
        return Workload(
            name=self.name,
            talker=layers[0],
            predictor=layers[1],
            head_weights=kept - table_weights - sum(map(stack_weights, layers)),
            table_weights=table_weights,
            encoder_weights=sum(map(weights, self.encoders)),
            decoder_weights=self.decoder if isinstance(self.decoder, int) else weights(self.decoder),
            processes=0 if self.pace else processes,
            native_processes=processes if self.pace else 0,
            pace=self.pace,
            positions=self.positions,
            other_stream_bytes=self.other_stream_bytes,
        )


def stack_weights(config: StackConfig) -> int:
    """Of the projections of all layers."""
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    inner = config.intermediate_size * (3 if config.mlp == "gated" else 2)
    return config.num_hidden_layers * config.hidden_size * (2 * queries + 2 * keys + inner)


def weights(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.state_dict().values())
