"""Several speeches in a row as one, with silences between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from voice_clone_client import Chunk
from voice_clone_client.finish_reasons import worse
from voice_clone_client.long_text.speaker import Speech
from voice_clone_sound.tempo import Tempo

from .audio.edges import QuietEdges
from .segments import Segment, Segments

Samples = NDArray[np.float32]

_COUNTED = ("text_tokens", "reference_frames", "frames", "retries")  # entries of `info` that add up


class SegmentedSpeech:
    """The segments of a request as one speech.

    A segment is asked for when the first chunk of the one before it is there, so its audio is ready when that ends. A
    silence has exactly its length; the quiet edges of a speech beside it are cut to a set one. Without a silence, a
    rate or a gain, the samples are those of the speech alone.

    Args:
        segments: what is spoken.
        ask: asks the server for a segment.
    """

    def __init__(self, segments: Segments, ask: Callable[[Segment], Speech]) -> None:
        self._segments = segments
        self._ask = ask
        self._speeches = [ask(segments.spoken[0])]
        self._shape: _Shape | None = None  # of the current segment, from its first chunk on
        self._current = self._chunks = 0
        self._rate = self._samples = 0
        self._info: dict[str, Any] = {}
        self._sums: dict[str, Any] = {}  # of the segments that have ended
        self._entries: list[dict[str, Any]] = []

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while self._current < len(self._speeches):
            try:
                samples = self._took(await anext(self._speeches[self._current]))
            except StopAsyncIteration:
                samples = self._end()
            if len(samples) or not self._chunks:
                self._chunks += 1
                return Chunk(samples, self._rate, self._chunks - 1, False, None)
        raise StopAsyncIteration

    @property
    def info(self) -> Mapping[str, Any] | None:
        """The latest info of the server; tokens and frames are sums, the finish reason is the worst. `segments` says
        where each begins and ends, in seconds, and where it is written; `marks`, in which segment each is."""
        return self._info or None

    def close(self) -> None:
        """Stop it."""
        for speech in self._speeches[self._current :]:
            speech.close()

    def _took(self, chunk: Chunk) -> Samples:
        """What is heard of a chunk."""
        before: Samples = np.zeros(0, np.float32)
        if self._shape is None:
            segment = self._segments.spoken[self._current]
            self._rate = chunk.sample_rate
            before = self._silence(segment.pause)
            self._shape = _Shape(segment, self._rate, self._pause_behind() > 0)
            self._begin_entry(segment)
            if self._current + 1 < len(self._segments.spoken):
                self._speeches.append(self._ask(self._segments.spoken[self._current + 1]))
        samples = self._shape.push(chunk.samples, final=False)
        self._samples += len(samples)
        if chunk.info:
            self._add_info(chunk.info)
        return np.concatenate([before, samples])

    def _end(self) -> Samples:
        """The rest of a segment; the next one is now the current."""
        samples = self._shape.push(np.zeros(0, np.float32), final=True) if self._shape else np.zeros(0, np.float32)
        self._samples += len(samples)
        self._entries[-1]["end"] = self._seconds
        self._sums = {name: self._info[name] for name in (*_COUNTED, "finish_reason") if name in self._info}
        self._speeches[self._current].close()
        self._current, self._shape = self._current + 1, None
        if self._current == len(self._segments.spoken):
            samples = np.concatenate([samples, self._silence(self._segments.pause)])
        return samples

    def _pause_behind(self) -> float:
        """Seconds of silence behind the current segment."""
        following = self._segments.spoken[self._current + 1 :]
        return following[0].pause if following else self._segments.pause

    def _silence(self, seconds: float) -> Samples:
        samples: Samples = np.zeros(round(seconds * self._rate), np.float32)
        self._samples += len(samples)
        return samples

    @property
    def _seconds(self) -> float:
        return round(self._samples / self._rate, 6)

    def _begin_entry(self, segment: Segment) -> None:
        entry = {"index": segment.turn, "characters": [segment.span.start, segment.span.end], "start": self._seconds}
        self._entries.append(entry)
        here = len(self._entries) - 1
        marks = [
            {"name": name, "segment": here, "character": character}
            for name, at, character in self._segments.marks
            if at == here or at > here + 1 == len(self._segments.spoken)
        ]
        if marks:
            self._info["marks"] = [*self._info.get("marks", []), *marks]

    def _add_info(self, info: Mapping[str, Any]) -> None:
        counts = {name: self._sums.get(name, 0) + info[name] for name in _COUNTED if name in info}
        self._info |= {**info, **counts, "segments": self._entries}
        if "finish_reason" in info and "finish_reason" in self._sums:
            self._info["finish_reason"] = worse(self._sums["finish_reason"], info["finish_reason"])


class _Shape:
    """What a segment asks for of its samples: quiet edges beside silences, tempo, volume."""

    def __init__(self, segment: Segment, rate: int, pause_behind: bool) -> None:
        begin = segment.pause > 0
        self._edges = QuietEdges(rate, begin, pause_behind) if begin or pause_behind else None
        self._tempo = Tempo(rate, segment.rate) if segment.rate != 1.0 else None
        self._gain = np.float32(segment.span.style.gain)

    def push(self, samples: Samples, final: bool) -> Samples:
        """The output after these samples."""
        if self._edges is not None:
            samples = self._edges.push(samples, final)
        if self._tempo is not None:
            samples = self._tempo.push(samples, final)
        return samples if self._gain == 1 else samples * self._gain
