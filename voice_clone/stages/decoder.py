"""The decoder stage that is alike for all families: frames to audio."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from voice_clone import compute
from voice_clone.checkpoint import CheckpointFiles
from voice_clone.codec.chunk import Reference
from voice_clone.codec.decoder import CodecFormat, StreamDecoder
from voice_clone.codec.decoder_streams import StatefulStreams, load_streams
from voice_clone.family import Family
from voice_clone.native.packed_file import PackedFile
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speakers.record import ArtifactId
from voice_clone.speakers.store import KnownVoices
from voice_clone.stages.known_voices import known_artifacts

if TYPE_CHECKING:  # a stage that finds its weights packed does without torch
    from torch import nn

N = TypeVar("N", bound="nn.Module")
S = TypeVar("S", bound="CardDecoder")


@dataclass(frozen=True)
class DecoderNetwork(Generic[N]):
    """A codec's decoder in a checkpoint.

    Attributes:
        make: builds torch's network, a `StreamDecoder`.
        file, prefix: as of `CheckpointFiles.load`.
        form: of the frames that it takes.
        sizes: a dataclass of all that shapes its weights.
        native: makes the native decoder, with a function that loads torch's network where its weights are not found
            packed; None: there is none.
    """

    checkpoint: CheckpointFiles
    file: str
    prefix: str
    make: Callable[[], N]
    form: CodecFormat
    sizes: Any = None
    native: Callable[[Callable[[], N], PackedFile], StreamDecoder[Any]] | None = None

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

    def load_fastest(self, settings: DecoderSettings, family: str) -> Any:
        """As native code on a CPU, if there is any; torch computes with one thread from then on. Else in torch.

        Raises:
            CheckpointError: as of `CheckpointFiles.load`.
        """
        if self.native is None or compute.device(settings) != "cpu":
            return self.load(settings)
        identity = self.checkpoint.identity(self.file)
        # Of any size: a process that finds them may do without torch.
        packed = compute.packed_file(settings, f"{family} decoder", identity, self.sizes, any_size=True)
        decoder = self.native(cache(lambda: self.load(settings)), packed)
        leave_threads_to_native_code()
        return decoder


class CardDecoder:
    """A `voice_clone.stages.protocols.DecoderStage` of a decoder with one state a stream.

    A family sets `card` and writes `network`; it overrides what differs.

    Args:
        decoder: on any engine.
        form: of the frames that it takes.

    Attributes:
        heard_frames: of a reference, those at its end that a stream is decoded behind; None: all.
    """

    card: ClassVar[Family]
    heard_frames: ClassVar[int | None] = None

    def __init__(self, decoder: Any, form: CodecFormat) -> None:
        self.decoder, self.form = decoder, form
        self.chunk_frames = self.card.chunk_frames

    @staticmethod
    @abstractmethod
    def network(folder: Path) -> DecoderNetwork[Any]:
        """The decoder in the checkpoint in `folder`."""

    @classmethod
    def load(cls: type[S], given: Settings) -> S:
        settings = DecoderSettings.of(given)
        network = cls.network(settings.checkpoint_dir)
        return cls(network.load_fastest(settings, cls.card.name), network.form)

    @classmethod
    def load_torch(cls, given: Settings) -> tuple[Any, CodecFormat]:
        """torch's network, of which the native decoder is made, and its form."""
        settings = DecoderSettings.of(given)
        network = cls.network(settings.checkpoint_dir)
        return network.load(settings), network.form

    def streams(self, settings: DecoderSettings, chunk_frames: Sequence[int]) -> Any:
        streams: StatefulStreams = load_streams(settings, self.decoder, self.form, chunk_frames)
        return streams

    def known_references(self, voices: KnownVoices) -> Iterator[Reference]:
        """What streams in the best mode of stored voices are decoded behind, if anything."""
        name, mode = self.card.references, next(iter(self.card.modes))
        if name:
            for record, artifacts in known_artifacts(voices, ArtifactId(self.card.name, mode), [name]):
                frames = artifacts[name][-self.heard_frames :] if self.heard_frames else artifacts[name]
                yield Reference(frames, origin=record.origin)
