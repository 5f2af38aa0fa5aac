"""Chunks of a stream on their way through the decoder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import VoiceCloneError
from voice_clone.lru_cache import Origin, digest

Primed = Literal["hit", "miss", "none"]
MarkResult = Literal["off", "marked", "failed"]
MarkWish = Literal["off", "on", "required"]
MARK_WISHES: tuple[MarkWish, ...] = get_args(MarkWish)  # each asks for more than those before it


@dataclass(frozen=True, eq=False)
class Reference:
    """What precedes a stream's own frames.

    Attributes:
        context: [n, width], reference frames whose audio is left out; n may be 0.
        voice: what the decoder needs of the voice besides, by names of the family; most need nothing.
        origin: of both.
    """

    context: NDArray[Any]
    voice: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin.unknown)

    @property
    def empty(self) -> bool:
        """Whether a stream begins as any other without a voice."""
        return not len(self.context) and not self.voice

    @property
    def key(self) -> bytes:
        """The digest of all that a decoder's state after it depends on."""
        names = sorted(self.voice)
        words = [np.frombuffer(name.encode(), np.uint8) for name in names]
        return digest(self.context, *words, *(self.voice[name] for name in names))


@dataclass(frozen=True)
class CodecChunk:
    """Consecutive frames of one stream.

    Attributes:
        stream_id: names the stream. A caller that knows it can feed the stream, so it must not be guessable.
        index: 0, 1, 2, ... without a gap.
        payload: [frames, width]; no frames give no samples.
        context, voice, origin: of the reference, with chunk 0 alone; else empty.
        final: no chunk follows.
        failure: the stream ends with this error instead of samples.
        from_talker: a talker sends the stream, inside an ensemble: no error but with the final chunk.
        mark: whether the stream is to be marked as synthetic, with chunk 0. The setting `mark` may ask for more.
        arrived: `time.monotonic()`.
    """

    stream_id: str
    index: int
    payload: NDArray[Any]
    context: NDArray[Any]
    final: bool
    failure: VoiceCloneError | None = None
    voice: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    from_talker: bool = False
    origin: Origin = field(default_factory=Origin.unknown)
    mark: MarkWish = "off"
    arrived: float = field(default_factory=time.monotonic)

    @property
    def reference(self) -> Reference:
        """What precedes the stream's own frames."""
        return Reference(self.context, self.voice, self.origin)


class Decoded(NamedTuple):
    """A chunk's samples, and what the stream has cost so far.

    Attributes:
        waveform: float32 [samples] in -1..1.
        primed: whether the state after the reference was in the cache (`hit`) or computed for this stream (`miss`);
            `none`: it has no reference.
        spent_ms: time of the batches that the stream was in.
        first_ms: time from the arrival of the stream's first chunk to its first samples.
        mark: whether the samples are marked as synthetic; `failed`: a mark was asked for, and could not be made.
    """

    waveform: NDArray[np.float32]
    primed: Primed
    spent_ms: float
    first_ms: float
    mark: MarkResult = "off"
