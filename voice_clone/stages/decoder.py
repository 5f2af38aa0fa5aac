"""Decoders with one state a stream: how they are loaded, and the stage that is alike for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from voice_clone import compute
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.codec.chunk import Reference
from voice_clone.codec.decoder import CodecFormat, StreamDecoder
from voice_clone.codec.decoder_streams import StatefulStreams, load_streams
from voice_clone.native.packed_file import PackedFile
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.settings import DecoderSettings
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages.loading import empty

N = TypeVar("N", bound=nn.Module)


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
        return empty(self.make).eval().requires_grad_(False)

    def load(self, settings: DecoderSettings) -> N:
        """In torch.

        Raises:
            CheckpointError: as of `CheckpointFiles.load`.
        """
        return self._fill(self.empty(), settings)

    def load_native(
        self, settings: DecoderSettings, family: str, sizes: Any, pack: Callable[[N, PackedFile], StreamDecoder]
    ) -> StreamDecoder:
        """As native code, on a CPU. torch computes with one thread from then on.

        Args:
            sizes: a dataclass of all that shapes the decoder's weights.
            pack: makes the native decoder. Where packed weights are found, torch's network has none.

        Raises:
            CheckpointError: as of `CheckpointFiles.load`.
        """
        packed = compute.packed_file(settings, f"{family} decoder", self.checkpoint.identity(self.file), sizes)
        network = self.empty()
        decoder = pack(network if packed.found else self._fill(network, settings), packed)
        leave_threads_to_native_code()
        return decoder

    def _fill(self, network: N, settings: DecoderSettings) -> N:
        device = torch.device(compute.device(settings))
        self.checkpoint.load(network, self.file, self.prefix, compute.decoder_dtype(settings), device)
        return network.requires_grad_(False)


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
        decoder: StreamDecoder,
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
