"""What differs between the codec decoders of families: the form of a frame, and how a decoder is run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from voice_clone.batching.source import PayloadForm
from voice_clone.errors import InvalidArgument
from voice_clone.layers.streaming import StreamState


@dataclass(frozen=True)
class CodecFormat:
    """The frames that a family's decoder takes, and the audio that it makes of them.

    Attributes:
        payload: the form of a frame.
        frame_samples: audio samples of a frame.
        sample_rate: Hz.
        limits: codes lie in 0..limit - 1: one limit for all codebooks, or one each; None for latents.
        look_ahead: frames that must follow a frame before its samples can be made. After a stream's last frame
            `StreamDecoder.flush` gives the samples that are left.
        needs_voice: whether the decoder depends on the voice beyond the reference frames: `StreamDecoder.condition`.
    """

    payload: PayloadForm
    frame_samples: int
    sample_rate: int
    limits: int | tuple[int, ...] | None = None
    look_ahead: int = 0
    needs_voice: bool = False

    @property
    def frame_seconds(self) -> float:
        """How long a frame is heard."""
        return self.frame_samples / self.sample_rate

    def check(self, frames: NDArray[Any], name: str, most: int) -> None:
        """`frames` must be [n, width] with n <= `most`, of the right type and range.

        Raises:
            InvalidArgument: they are not; `name` says which tensor is meant.
        """
        width = self.payload.width
        if frames.ndim != 2 or (len(frames) and frames.shape[1] != width):
            raise InvalidArgument(f"{name} must have shape [frames, {width}]")
        if len(frames) > most:
            raise InvalidArgument(f"{name} has {len(frames)} frames; at most {most} are taken at once")
        if not frames.size:
            return
        if self.limits is None:
            if not np.isfinite(frames).all():
                raise InvalidArgument(f"{name} must be finite; it holds NaN or infinity")
        elif frames.dtype.kind not in "iu":
            raise InvalidArgument(f"{name} must be integers")
        elif frames.min() < 0 or (frames >= np.array(self.limits)).any():
            least = self.limits if isinstance(self.limits, int) else min(self.limits)
            books = "" if isinstance(self.limits, int) else " or more, by codebook"
            raise InvalidArgument(f"{name} must lie in 0..{least - 1}{books}")

    def table(self, frames: Sequence[NDArray[Any]], rows: int, most: int) -> NDArray[Any]:
        """At most `rows` times [n, width], n <= `most` -> [rows, width, most], the rest zeros: int64 codes, or float32
        latents.
        """
        table = np.zeros((rows, self.payload.width, most), np.float32 if self.limits is None else np.int64)
        for row, each in zip(table, frames, strict=False):
            if len(each):
                row[:, : len(each)] = each.T
        return table

    def batch(self, frames: Sequence[NDArray[Any]], device: torch.device) -> torch.Tensor:
        """B times [n, width] -> [B, width, n] on `device`: int64 codes, or float32 latents."""
        return torch.from_numpy(self.table(frames, len(frames), len(frames[0]))).to(device)


class StreamDecoder(Protocol):
    """A decoder that moves streams on, any number of frames at a time, with the same samples however they are cut.

    One that inherits from this has what most decoders do: no ragged batches, no voice, no look-ahead.
    """

    @property
    def ragged(self) -> RaggedDecoder | None:
        """This decoder, if the streams of a batch may have unequal numbers of frames. CUDA graphs need that."""
        return None

    @property
    @abstractmethod
    def any_shape(self) -> bool:
        """Whether the same code runs for all shapes, so that the smallest warms it up."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where frames are expected and states lie."""

    @abstractmethod
    def new_state(self, batch: int) -> StreamState:
        """The state of `batch` streams before their first frame."""

    def condition(self, state: StreamState, voice: Mapping[str, NDArray[Any]]) -> None:
        """Give the fresh stream of `state` its voice: arrays by the names that the family's prompt stage gave them.

        Called where `CodecFormat.needs_voice`.
        """
        raise TypeError(f"{type(self).__name__} takes no voice; its format must not need one")

    @abstractmethod
    def decode_chunk(self, frames: torch.Tensor, state: StreamState) -> torch.Tensor:
        """The next frames [B, width, n] of B streams -> samples [B, m] in -1..1; moves `state` on."""

    @abstractmethod
    def prime(self, frames: torch.Tensor, state: StreamState) -> None:
        """Move fresh streams on over frames whose samples are not wanted."""

    def flush(self, state: StreamState) -> torch.Tensor:
        """The samples [B, m] that the last frames still lack; the streams end with it.

        Called where `CodecFormat.look_ahead`.
        """
        raise TypeError(f"{type(self).__name__} does not look ahead; its format must not say so")


class RaggedDecoder(StreamDecoder, Protocol):
    """A decoder whose streams may have unequal numbers of frames in one batch. Its state's buffers are of one dtype."""

    @property
    def ragged(self) -> RaggedDecoder:
        """Itself."""
        return self

    @abstractmethod
    def decode_chunk(
        self, frames: torch.Tensor, state: StreamState, lengths: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As of a `StreamDecoder`. `lengths` int64 [B] says how many frames are each stream's; padding follows them.

        The samples of padding may be anything; padding moves no stream on. The host reads no value of a tensor, so a
        CUDA graph can hold this.
        """
