"""A native decoder as decoders in torch are called, so that a test can compare both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from voice_clone.codec.decoder import StreamDecoder, StreamState
from voice_clone.native.arrays import Array


class InTorch:
    """Takes and gives tensors. States stay numpy's arrays.

    Attributes:
        native: the decoder itself.
    """

    def __init__(self, native: StreamDecoder[Array]) -> None:
        self.native = native

    def new_state(self, batch: int) -> StreamState[Any]:
        return self.native.new_state(batch)

    def decode_chunk(self, frames: Tensor, state: StreamState[Any]) -> Tensor:
        return torch.from_numpy(self.native.decode_chunk(frames.numpy(), state))

    def prime(self, frames: Tensor, state: StreamState[Any]) -> None:
        self.native.prime(frames.numpy(), state)
