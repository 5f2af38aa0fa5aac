"""What a family implements: an object for each stage of a speech. The stages' models are built on these alone.

    voice encoder   clip -> artifacts                     EncoderStage, one for each network
    prompt          text and voice -> the talker's prompt PromptStage
    talker          prompt -> frames                      TalkerStage
    code2wav        frames -> audio                       DecoderStage

docs/adding_a_family.md goes through them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.lru_cache import Origin
from voice_clone.settings import ChunkSettings, DecoderSettings
from voice_clone.speakers.store import KnownVoices
from voice_clone.speech import ResolvedVoice, SpeechRequest

if TYPE_CHECKING:  # at run time these would bring torch, which the prompt's process does without
    from voice_clone.batching.source import Example, TalkerSource
    from voice_clone.codec.chunk import Reference
    from voice_clone.codec.decoder import CodecFormat
    from voice_clone.codec.decoder_streams import DecoderStreams

Arrays = Mapping[str, NDArray[Any]]
Call = Callable[[str, Arrays], Arrays]
"""Asks a model of this server: its name and its inputs -> its outputs, both by name."""

D = TypeVar("D")
P = TypeVar("P")
R = TypeVar("R")


def chunk_schedule(settings: ChunkSettings, default: tuple[int, ...]) -> tuple[int, ...]:
    """The frames of a stream's chunks; the last number repeats.

    Raises:
        InvalidArgument: code2wav would refuse such a chunk.
    """
    schedule, most = settings.chunk_frames or default, settings.max_chunk_frames
    if max(schedule) > most:
        raise InvalidArgument(
            f"the setting chunk_frames has {max(schedule)}; it must not be above max_chunk_frames, which is {most}"
        )
    return schedule


def check_reference(frames: int, most: int) -> None:
    """Check the reference frames of a voice against `max_chunk_frames`.

    Raises:
        InvalidArgument: there are too many.
    """
    if frames > most:
        raise InvalidArgument(
            f"the reference of this voice has {frames} frames, and this server takes at most {most}; "
            "use a shorter clip, or a larger max_chunk_frames"
        )


def check_clip(frames: int, most: int) -> None:
    """Check what an encoder made of a clip, where code2wav takes at most `most` frames of a reference.

    Raises:
        Unsupported: the clip has more; it may serve other families.
    """
    if frames > most:
        raise Unsupported(
            f"the clip has {frames} frames, and this family takes at most {most} here; use a shorter clip, or a larger "
            "max_chunk_frames"
        )


class Limit(NamedTuple):
    """The values and the size that an artifact may have, wherever it comes from: an extraction, a bundle, a file.

    Attributes:
        below: its values lie in 0..below - 1; None: any that are finite.
        rows: the least and the most size of its first dimension; None: any.
    """

    below: int | None = None
    rows: tuple[int, int] | None = None


class EncoderStage(Protocol):
    """The voice encoder, or one of its networks."""

    @property
    def sample_rate(self) -> int:
        """Hz of the waveforms that it takes."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """The digest of weights and configuration, by the name of its output: `fingerprint`, or one that ends so for
        each of several networks.
        """

    @property
    def modes(self) -> Mapping[str, Sequence[str] | str] | None:
        """The family's modes, the best first, and what each needs besides audio (`reference_text`), or a sentence that
        says why this checkpoint cannot do it; None: another network of the family declares them.
        """

    @property
    def presets(self) -> Collection[str]:
        """The names of voices that the checkpoint brings, as of the prompt stage. They are listed if the model has the
        output `presets`.
        """

    def limits(self, mode: str | None) -> Mapping[str, Limit]:
        """What the artifacts of a mode may hold, by name; artifacts without limits are left out."""

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """Artifacts of a mono waveform [samples], by name. An empty one asks for names, types and dimensions alone."""


class NoEncoder(NamedTuple):
    """What a family says that makes no voice of a clip, in place of an `EncoderStage`.

    Attributes:
        modes: as of `EncoderStage`, each with the sentence why this checkpoint cannot do it.
        presets: the names of voices that the checkpoint brings.
    """

    modes: Mapping[str, str]
    presets: Collection[str] = ()


class Prepared(NamedTuple):
    """What the prompt stage hands to the talker.

    Attributes:
        tensors: by names that the family's talker knows.
        info: shown to the client with the first and the last chunk.
    """

    tensors: Arrays
    info: Mapping[str, Any] = field(default_factory=dict)


class OpenText(Protocol):
    """The text of one stream while it is written. Not thread-safe."""

    @property
    def tokens(self) -> int:
        """How many tokens are final."""

    @property
    def before_audio(self) -> int:
        """How many of the tokens the talker must read before it makes its first frame."""

    @property
    def blank(self) -> bool:
        """Whether there is no word in it yet."""

    def draft(self, text: str, last: bool) -> Any:
        """The tokens that a piece of text would bring, with a length; with `last` it ends the text. Changes nothing.

        Raises:
            InvalidArgument: it cannot be part of a text.
        """

    def take(self, draft: Any, cut: bool = False) -> Any:
        """Append what was drafted; returns what `FrameSource.extend` takes.

        Args:
            cut: the text is closed without its end, so the stream's finish is `text_timeout` in place of `stop`.
        """

    def read(self, frames: int) -> int:
        """How many of the tokens the talker has read when it has made so many frames."""

    def characters(self, tokens: int) -> int:
        """For how many characters the first tokens stand."""


class PromptStage(Protocol[D]):
    """Text and voice to a prompt; D is what is known before the voice is."""

    @property
    def appends(self) -> bool:
        """Whether the text of a request may follow while it is spoken (`SpeechRequest.text_stream`)."""

    @property
    def presets(self) -> Collection[str]:
        """The names of voices that the checkpoint brings; their case does not matter. A registered voice of the same
        name wins, if the family can use it.
        """

    @property
    def voiceless(self) -> bool:
        """Whether a speech needs no voice."""

    @property
    def decoder(self) -> str:
        """The family whose code2wav makes the audio."""

    @property
    def instructions(self) -> str:
        """The option that takes instructions on how to speak; "": there is none."""

    def draft(self, speech: SpeechRequest) -> D:
        """Check everything that does not depend on the voice, and tokenise the text.

        Raises:
            InvalidArgument, Unsupported: the request asks for what this checkpoint cannot do.
        """

    def prepare(self, speech: SpeechRequest, draft: D, voice: ResolvedVoice | None) -> Prepared:
        """The prompt.

        Args:
            voice: None if the request brings a speaker embedding, names a preset, or has no voice.

        Raises:
            InvalidArgument, Unsupported: the voice does not suit the request.
        """


@dataclass(frozen=True, eq=False)
class StreamPlan(Generic[R]):
    """One stream as the talker's engine takes it.

    Attributes:
        request: for the source.
        context: reference frames [n, width] that the decoder must hear before the stream; n may be 0.
        voice: what the decoder needs of the voice besides, if it needs any.
        info: shown to the client with the first and the last chunk.
        text: of the stream, if more of it may follow.
        chunk_frames: its own schedule in place of the setting's; a chunk of it never goes out before it is full.
    """

    request: R
    context: NDArray[Any]
    voice: Arrays = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    text: OpenText | None = None
    chunk_frames: tuple[int, ...] | None = None


class TalkerStage(Protocol[R, P]):
    """A talker with the memory of its streams; R: a request of its source, P: a prompt that `restore` reads."""

    @property
    def source(self) -> TalkerSource[R, P]:
        """Makes the frames."""

    @property
    def frame_seconds(self) -> float:
        """Seconds of audio of a frame."""

    @property
    def chunk_frames(self) -> tuple[int, ...]:
        """The default of the setting `chunk_frames`: frames of a stream's chunks; the last number repeats."""

    @property
    def example(self) -> Example[R]:
        """Requests for the warm-up."""

    def plan(self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]) -> StreamPlan[R]:
        """The stream that a caller wants.

        Args:
            tensors: as `PromptStage.prepare` made them.
            knobs: those of `request_fields.KNOBS` that are given.
            options: what only the family knows.

        Raises:
            InvalidArgument: a tensor is missing or wrong, a knob or an option is out of range or unknown.
        """

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, P]]:
        """A prompt with some text for each registered voice, the latest first."""


class DecoderStage(Protocol):
    """The codec's decoder."""

    def streams(self, settings: DecoderSettings, chunk_frames: Sequence[int]) -> DecoderStreams:
        """The decoder, on the engine that the settings ask for, with all its streams, whose chunks have so many frames.

        Most families return `codec.decoder_streams.load_streams`; one whose decoder keeps other things brings its own.
        """

    @property
    def form(self) -> CodecFormat:
        """The frames that it takes, and the audio that it makes of them."""

    @property
    def chunk_frames(self) -> tuple[int, ...]:
        """The lengths of chunks that are warmed up: the talker's `chunk_frames`."""

    def known_references(self, voices: KnownVoices) -> Iterator[Reference]:
        """The reference of each registered voice, the latest first."""
