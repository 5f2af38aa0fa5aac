"""The samples of several speeches in a row, with silences between them, as one speech. It waits for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from voice_clone_client.joined_info import JoinedInfo
from voice_clone_client.types import Chunk
from voice_clone_text.sequence import Part, Sequence

from .edges import QuietEdges

Samples = NDArray[np.float32]


class Shape:
    """What is done with the samples of a part: without a silence beside it, a gain or a tempo, nothing.

    Args:
        rate: Hz.
        before, behind: seconds of silence beside it; None: not known yet, so quiet samples at its end wait.
        tempo: a factor; others than 1 need the extra `audio`.
        gain: factor of its samples.
    """

    def __init__(self, rate: int, before: float, behind: float | None, tempo: float, gain: float) -> None:
        self._edges = QuietEdges(rate, before > 0, behind != 0) if before or behind != 0 else None
        self._tempo = None
        if tempo != 1:
            from .tempo import Tempo  # needs the extra

            self._tempo = Tempo(rate, tempo)
        self._gain = np.float32(gain)

    @property
    def waits(self) -> bool:
        """Whether samples may wait for those behind them."""
        return self._edges is not None or self._tempo is not None

    def push(self, samples: Samples, final: bool, behind: float | None = None) -> Samples:
        """The output after these samples.

        Args:
            final: none follow.
            behind: seconds of silence behind the last one, where that was not known.
        """
        if self._edges is not None:
            samples = self._edges.push(samples, final, followed=behind != 0)
        if self._tempo is not None:
            samples = self._tempo.push(samples, final)
        return samples if self._gain == 1 else samples * self._gain


class JoinedParts:
    """The speeches of the parts of a text, each of which is read to its end before the next.

    A silence has exactly its length; the quiet edges of a speech beside it are cut to a set one. Without a silence, a
    gain or a tempo the samples are those of the speech alone.
    """

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._shape: Shape | None = None  # of the current part, from its first chunk on
        self._rate = self._samples = self._chunks = 0
        self._said = JoinedInfo()
        self._entries: list[dict[str, Any]] = []
        self.current = 0
        """Which part is read."""

    @property
    def info(self) -> dict[str, Any]:
        """See `JoinedInfo`. `segments` says where each part begins and ends, in seconds, and where it is written;
        `marks`, in which part each is."""
        return self._said.info

    @property
    def part(self) -> Part | None:
        """The part that is read; None behind the last one."""
        parts = self._sequence.parts
        return parts[self.current] if self.current < len(parts) else None

    def take(self, chunk: Chunk) -> Chunk:
        """What is heard of a chunk of the current part."""
        before: Samples = np.zeros(0, np.float32)
        if self._shape is None:
            self._rate = chunk.sample_rate
            before = self._silence(self._sequence.parts[self.current].pause)
            self._begin(self._sequence.parts[self.current])
        samples = self._push(chunk.samples, final=False)
        if chunk.info:
            self._said.add(chunk.info)
        return self._chunk(np.concatenate([before, samples]), chunk.info)

    def go_on(self) -> None:
        """The next chunk is of another speech, which goes on with the current part."""
        self._said.end()

    def end(self) -> Chunk:
        """The rest of the current part, which has no further chunk; the next one is now the current."""
        samples = self._push(np.zeros(0, np.float32), final=True)
        self._entries[-1]["end"] = self._seconds
        self._said.end()
        self.current, self._shape = self.current + 1, None
        if self.part is None:
            samples = np.concatenate([samples, self._silence(self._sequence.pause)])
        return self._chunk(samples, None)

    def _begin(self, part: Part) -> None:
        parts = self._sequence.parts
        behind = self._sequence.pause if part is parts[-1] else parts[self.current + 1].pause
        self._shape = Shape(self._rate, part.pause, behind, part.rate, part.span.style.gain)
        written = [part.span.start, part.span.end]
        self._entries.append({"index": part.turn, "characters": written, "start": self._seconds})
        here = len(self._entries) - 1
        self.info["segments"] = self._entries
        for name, at, character in self._sequence.marks:
            if at == here or (at > here and part is parts[-1]):
                self.info.setdefault("marks", []).append({"name": name, "segment": here, "character": character})

    def _push(self, samples: Samples, final: bool) -> Samples:
        if self._shape is not None:
            samples = self._shape.push(samples, final)
        self._samples += len(samples)
        return samples

    def _silence(self, seconds: float) -> Samples:
        samples: Samples = np.zeros(round(seconds * self._rate), np.float32)
        self._samples += len(samples)
        return samples

    def _chunk(self, samples: Samples, info: Mapping[str, Any] | None) -> Chunk:
        self._chunks += 1
        return Chunk(samples, self._rate, self._chunks - 1, self.part is None, info)

    @property
    def _seconds(self) -> float:
        return round(self._samples / self._rate, 6)
