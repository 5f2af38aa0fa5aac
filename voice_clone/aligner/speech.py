"""A speech that is aligned: by an engine, or by an estimate where it refuses."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from voice_clone_words.estimate import estimate
from voice_clone_words.loudness import Loudness
from voice_clone_words.units import Unit, units_of

from voice_clone.aligner.engine import Alignment, Engine, Interval, Refused, Samples

log = logging.getLogger(__name__)

Found = list[dict[str, Any]]
"""Words: `text`, `start` and `end` in samples, `span` in the text, `estimated`, `confidence` if it has one."""


class AlignedSpeech:
    """The words of one speech, whose samples may come in pieces. It never fails for what it hears.

    Args:
        engine: finds the words.
        text: of the speech.
        rate: samples a second.
        language: an ISO 639-1 code, or None where it is unknown.
    """

    def __init__(self, engine: Engine, text: str, rate: int, language: str | None) -> None:
        self._units = units_of(text)
        self._loudness = Loudness(rate)
        self._length = self._settled = 0
        self._alignment: Alignment | None = None
        self.reason: str | None = None
        """Why the words are an estimate; None: they are none so far."""
        if not self._units:
            self.reason = "the text has no words"
            return
        with self._guarded():
            self._alignment = engine.start(self._units, rate, language)

    def feed(self, samples: Samples) -> Found:
        """Take samples; returns the words that are settled since the last call."""
        self._loudness.feed(samples)
        self._length += len(samples)
        found: Sequence[Interval] = []
        if self._alignment is not None:
            with self._guarded():
                found = self._alignment.feed(samples)
        begin, self._settled = self._settled, self._settled + len(found)
        return [_word(unit, each) for unit, each in zip(self._units[begin:], found, strict=False)]

    def end(self) -> Found:
        """All words of the speech. Those that were settled are among them, unless the engine has refused since."""
        found: Sequence[Interval] = []
        if self._alignment is not None:
            with self._guarded():
                found = self._alignment.end()
        if self._alignment is not None:
            return [_word(unit, each) for unit, each in zip(self._units, found, strict=True)]
        times = estimate(self._units, self._loudness.silent(), self._loudness.step, self._length)
        return [_word(unit, Interval(*each), estimated=True) for unit, each in zip(self._units, times, strict=True)]

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn an error of the engine into a refusal."""
        try:
            yield
        except Refused as refused:
            self.reason, self._alignment = str(refused), None
        except Exception as error:
            log.error("the engine failed", exc_info=error)
            self.reason, self._alignment = "the engine failed", None


def _word(unit: Unit, interval: Interval, *, estimated: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {
        "text": unit.text,
        "start": interval.start,
        "end": interval.end,
        "span": [unit.start, unit.end],
        "estimated": estimated,
    }
    if interval.confidence is not None:
        found["confidence"] = interval.confidence
    return found


def pieces(samples: Samples, rate: int) -> list[Samples]:
    """A speech in parts of half a second, between which other work may be done."""
    return np.split(samples, range(rate // 2, len(samples), max(1, rate // 2)))
