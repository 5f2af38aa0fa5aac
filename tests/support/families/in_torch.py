"""A native decoder or encoder as those in torch are called, so that a test can compare both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from voice_clone.codec.decoder import StreamState


class InTorch:
    """Takes and gives tensors. States stay numpy's arrays.

    Attributes:
        native: the decoder or encoder itself.
    """

    def __init__(self, native: Any) -> None:
        self.native = native

    def new_state(self, batch: int) -> StreamState[Any]:
        state: StreamState[Any] = self.native.new_state(batch)
        return state

    def decode_chunk(self, frames: Tensor, state: StreamState[Any]) -> Tensor:
        return torch.from_numpy(self.native.decode_chunk(frames.numpy(), state))

    def encode(self, waveform: Tensor) -> Tensor:
        return torch.from_numpy(self.native.encode(waveform.numpy()))

    def prime(self, frames: Tensor, state: StreamState[Any]) -> None:
        self.native.prime(frames.numpy(), state)
