"""What a model's speech costs, apart from the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.codec.native_decoder import NativeWindowedDecoder


@dataclass(frozen=True)
class Pace:
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
    pace: Pace | None
    positions: int = 1000
    other_stream_bytes: int = 0
    native_processes: int = 0
