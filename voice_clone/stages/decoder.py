"""Decoders with one state a stream: how they are loaded, and the stage that is alike for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from voice_clone import compute
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.codec.chunk import Reference
from voice_clone.codec.decoder import CodecFormat, StreamDecoder
from voice_clone.codec.decoder_streams import StatefulStreams, load_streams
from voice_clone.native.packed_file import PackedFile
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.settings import DecoderSettings
from voice_clone.speakers.store import KnownVoices

if TYPE_CHECKING:  # a stage that finds its weights packed does without torch
    from torch import nn

N = TypeVar("N", bound="nn.Module")


@dataclass(frozen=True)
class DecoderNetwork(Generic[N]):
    """A codec's decoder in a checkpoint.

    Attributes:
        make: builds torch's network, a `StreamDecoder`.
        file, prefix: as of `CheckpointFiles.load`.
    """

    checkpoint: CheckpointFiles
    file: str
    prefix: str
    make: Callable[[], N]

    def empty(self) -> N:
        """torch's network without weights, on the meta device."""
        from voice_clone.stages.loading import empty

        return empty(self.make).eval().requires_grad_(False)

    def load(self, settings: DecoderSettings) -> N:
        """In torch.

        Raises:
            CheckpointError: as of `CheckpointFiles.load`.
        """
        import torch

        network, device = self.empty(), torch.device(compute.device(settings))
        self.checkpoint.load(network, self.file, self.prefix, compute.decoder_dtype(settings), device)
        return network.requires_grad_(False)

    def load_native(
        self,
        settings: DecoderSettings,
        family: str,
        sizes: Any,
        pack: Callable[[Callable[[], N], PackedFile], StreamDecoder[Any]],
    ) -> StreamDecoder[Any]:
        """As native code, on a CPU. torch computes with one thread from then on.

        Args:
            sizes: a dataclass of all that shapes the decoder's weights.
            pack: makes the native decoder; it loads torch's network where its weights are not found packed.

        Raises:
            CheckpointError: as of `CheckpointFiles.load`.
        """
        identity = self.checkpoint.identity(self.file)
        # Of any size: a process that finds them may do without torch.
        packed = compute.packed_file(settings, f"{family} decoder", identity, sizes, any_size=True)
        decoder = pack(cache(lambda: self.load(settings)), packed)
        leave_threads_to_native_code()
        return decoder


def no_references(voices: KnownVoices) -> Iterator[Reference]:
    """For a family whose streams are decoded without their references."""
    return iter(())


class StreamDecoderStage:
    """A `voice_clone.stages.protocols.DecoderStage` of a decoder with one state a stream.

    Args:
        decoder: on any engine.
        form: of the frames that it takes.
        chunk_frames: lengths of a stream's chunks by default, those of the talker; the last repeats.
        references: of stored voices, the latest first.
    """

    def __init__(
        self,
        decoder: StreamDecoder[Any],
        form: CodecFormat,
        chunk_frames: tuple[int, ...],
        references: Callable[[KnownVoices], Iterator[Reference]] = no_references,
    ) -> None:
        self.decoder = decoder
        self.form = form
        self.chunk_frames = chunk_frames
        self._references = references

    def streams(self, settings: DecoderSettings, chunk_frames: Sequence[int]) -> StatefulStreams:
        """The decoder with all its streams."""
        return load_streams(settings, self.decoder, self.form, chunk_frames)

    def known_references(self, voices: KnownVoices) -> Iterator[Reference]:
        """As of `DecoderStage`."""
        return self._references(voices)
