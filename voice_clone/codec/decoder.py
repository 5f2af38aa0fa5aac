"""What differs between the codec decoders of families: the form of a frame, and how a decoder is run.

A decoder computes in torch, or in native code on numpy's arrays. What runs decoders does not import torch: a process
whose decoder is native does without it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from voice_clone.array_kinds import copied, joined
from voice_clone.batching.source import PayloadForm
from voice_clone.errors import InvalidArgument

if TYPE_CHECKING:
    import torch
    from torch import Tensor

A = TypeVar("A", "Tensor", NDArray[Any])


class CodecFormat(NamedTuple):
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

    def batch(self, frames: Sequence[NDArray[Any]], device: torch.device | None) -> Any:
        """B times [n, width] -> [B, width, n]: int64 codes, or float32 latents; a tensor on `device`, or an array."""
        table = self.table(frames, len(frames), len(frames[0]))
        if device is None:
            return table
        import torch

        return torch.from_numpy(table).to(device)


@dataclass
class StreamState(Generic[A]):
    """The state of B streams: everything of their past that the next frames depend on.

    It can be forked, batched and split. `position` int64 [B] counts the frames so far; `buffers` are those of the
    decoder's parts, with B as their first dimension. A step replaces tensors and arrays and never writes into them.
    """

    position: A
    buffers: list[A]

    @property
    def nbytes(self) -> int:
        return self.position.nbytes + sum(buffer.nbytes for buffer in self.buffers)

    def fork(self) -> StreamState[A]:
        """A second state that continues from here. It shares this one's memory, which is safe."""
        return StreamState(self.position, list(self.buffers))

    @staticmethod
    def stack(states: Sequence[StreamState[A]]) -> StreamState[A]:
        """One batch of all streams of `states`, in order; at least one."""
        position = joined([state.position for state in states])
        return StreamState(position, [joined(parts) for parts in zip(*(each.buffers for each in states), strict=True)])

    def split(self) -> list[StreamState[A]]:
        """The states of the single streams; none keeps the batch's memory alive."""
        return [
            StreamState(copied(self.position[i : i + 1]), [copied(buffer[i : i + 1]) for buffer in self.buffers])
            for i in range(len(self.position))
        ]


class StreamDecoder(Protocol[A]):
    """A decoder that moves streams on, any number of frames at a time, with the same samples however they are cut.

    One that inherits from this has what most decoders do: no ragged batches, no voice, no look-ahead.
    """

    @property
    def ragged(self) -> RaggedDecoder | None:
        return None

    @property
    @abstractmethod
    def any_shape(self) -> bool:
        """Whether the same code runs for all shapes, so that the smallest warms it up."""

    @property
    @abstractmethod
    def device(self) -> torch.device | None:
        """Where frames are expected and states lie; None: in numpy's arrays."""

    @abstractmethod
    def new_state(self, batch: int) -> StreamState[A]:
        """The state of `batch` streams before their first frame."""

    def condition(self, state: StreamState[A], voice: Mapping[str, NDArray[Any]]) -> None:
        """Give the fresh stream of `state` its voice: arrays by the names that the family's prompt stage gave them.

        Called where `CodecFormat.needs_voice`.
        """
        raise TypeError(f"{type(self).__name__} takes no voice; its format must not need one")

    @abstractmethod
    def decode_chunk(self, frames: A, state: StreamState[A]) -> A:
        """The next frames [B, width, n] of B streams -> samples [B, m] in -1..1; moves `state` on."""

    @abstractmethod
    def prime(self, frames: A, state: StreamState[A]) -> None:
        """Move fresh streams on over frames whose samples are not wanted."""

    def flush(self, state: StreamState[A]) -> A:
        """The samples [B, m] that the last frames still lack; the streams end with it.

        Called where `CodecFormat.look_ahead`.
        """
        raise TypeError(f"{type(self).__name__} does not look ahead; its format must not say so")


class RaggedDecoder(StreamDecoder["Tensor"], Protocol):
    """A decoder in torch whose streams may have unequal numbers of frames in one batch.

    Its state's buffers are of one dtype.
    """

    @property
    def ragged(self) -> RaggedDecoder:
        """Itself."""
        return self

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where frames are expected and states lie."""

    @abstractmethod
    def decode_chunk(self, frames: Tensor, state: StreamState[Tensor], lengths: Tensor | None = None) -> Tensor:
        """As of a `StreamDecoder`. `lengths` int64 [B] says how many frames are each stream's; padding follows them.

        The samples of padding may be anything; padding moves no stream on. The host reads no value of a tensor, so a
        CUDA graph can hold this.
        """
