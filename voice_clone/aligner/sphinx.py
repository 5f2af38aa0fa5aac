"""pocketsphinx as an aligner of English: one pass of a decoder whose grammar is the text.

A decoder gets the samples in pieces of one size, whatever pieces come. So a speech in pieces has the times of a whole
one. A word is settled once it ended some time ago and the next one has begun. A long text is decoded in groups of
sentences, each by a decoder of its own, from where the last one ended: so memory is bounded.

The decoder holds Python's global lock while it works, for a millisecond a piece.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray
from voice_clone_words.loudness import FRAME, Loudness, runs_of
from voice_clone_words.units import Unit

from voice_clone.aligner.dictionary import Dictionary
from voice_clone.aligner.engine import Interval, Refused, Samples
from voice_clone.aligner.grammar import Grammar, unit_of
from voice_clone.aligner.readings import readings

PIECE = 0.08
"""Seconds of a piece; a decoder's result depends on it."""
SETTLED = 0.3
"""Seconds after its end at which a word is settled, if the next one has begun."""
LOWEST_RATE = 14_000
"""Samples a second: the acoustic model hears up to 6800 Hz."""
_FEWEST, _MOST, _TAIL = 20, 40, 4  # units of a group, and those of the next one that its decoder also knows
_OUTSIDE = 0.1  # share of the loud frames that are in no word; of the right text it is below 0.07
_UNSURE = 0.02  # of more, and in noise, the scores say whether the text is there
_FAINT = 1e-6  # energy below which nothing is speech: -60 dB
_NOISE = 10 ** (-42 / 10)  # energy of the quiet frames, relative to the loud ones; in noise all frames are loud
_WIDE = {"beam": 1e-300, "wbeam": 1e-300, "pbeam": 1e-300}  # loses no path, for noisy speech
_LEAST, _LEAST_AGAIN = 0.5, 0.37  # confidence of the words in the mean; the second, where noise hides the path
_MIDDLE, _SPREAD = -36.0, 8.0  # scores of a frame; 1 % of right words and 94 % of wrong ones are below the first
_AT_EDGE = round(0.05 / FRAME)  # frames of silence that are taken off an edge
_NEAR = round(0.1 / FRAME)  # frames from an edge in which the tail of the word beside may be
_PAUSE = round(0.12 / FRAME)  # frames of silence behind such a tail
_LATIN = regex.compile(r"\p{Latin}")
_LETTER = regex.compile(r"\p{L}")
_ENDS = regex.compile(r"[.!?…]['\"\p{Pe}\p{Pf}]*$")
_NO_FIT = "the text does not fit the speech"


class PocketSphinx:
    """An `Engine` for English.

    Raises:
        ImportError: pocketsphinx is not installed.
    """

    def __init__(self) -> None:
        import pocketsphinx

        self._sphinx = pocketsphinx
        self._models = Path(pocketsphinx.get_model_path()) / "en-us"
        self._dictionary = Dictionary(self._models / "cmudict-en-us.dict")

    def start(self, units: Sequence[Unit], rate: int, language: str | None, confidence: bool) -> SphinxAlignment:
        """See `Engine`. Where the language is unknown, it is English if letters are Latin and most words are known."""
        if rate < LOWEST_RATE:
            raise Refused(f"the rate of the speech is {rate} Hz; at least {LOWEST_RATE} is needed")
        if language is None and not self._is_english(units):
            raise Refused("the text does not look like English, the only language that is aligned here")
        if language is not None and language != "en":
            raise Refused(f"only English is aligned here, not {language!r}")
        return SphinxAlignment(self, units, rate, confidence)

    def grammar(self, units: Sequence[Unit], tail: Sequence[Unit]) -> Grammar:
        return Grammar(self._dictionary, units, tail)

    def decoder(self, grammar: Grammar, rate: int, beams: dict[str, float]) -> Any:
        """Make a decoder that knows only these words. One that has failed refuses every later text."""
        with tempfile.NamedTemporaryFile("w", suffix=".dict", encoding="ascii") as words:
            words.write("\n".join(grammar.words) + "\n")
            words.flush()
            config = self._sphinx.Config(
                hmm=str(self._models / "en-us"),
                dict=words.name,
                lm=None,
                bestpath=False,  # it would give the last word the pause behind it
                samprate=float(rate),
                loglevel="FATAL",
                **beams,
            )
            decoder = self._sphinx.Decoder(config)
        decoder.add_fsg("speech", decoder.create_fsg("speech", grammar.start, grammar.final, grammar.arcs))
        decoder.activate_search("speech")
        decoder.start_utt()
        return decoder

    def _is_english(self, units: Sequence[Unit]) -> bool:
        text = "".join(unit.text for unit in units)
        letters = _LETTER.findall(text)
        if any(not _LATIN.match(letter) for letter in letters):
            return False
        words = [way[0] for unit in units if (way := readings(unit.text))]
        known = [all(self._dictionary.pronunciations(word) for word in way) for way in words]
        return bool(known) and sum(known) > len(units) / 2


class SphinxAlignment:
    """See `Alignment`. With confidence, which needs a second pass, no unit is settled before the end."""

    def __init__(self, engine: PocketSphinx, units: Sequence[Unit], rate: int, confidence: bool) -> None:
        self._engine = engine
        self._units = units
        self._rate = rate
        self._confidence = confidence
        self._piece = round(PIECE * rate)
        self._shift = math.floor(rate / 100 + 0.5)  # samples of a frame of the decoder
        self._loudness = Loudness(rate)
        self._waiting = np.zeros(0, np.int16)
        self._fed = 0
        self._found: list[Interval] = []
        self._cuts = _groups(units)
        self._begin_group(0, np.zeros(0, np.int16))

    def feed(self, samples: Samples) -> Sequence[Interval]:
        before = len(self._found)
        self._waiting = np.concatenate([self._waiting, np.rint(np.clip(samples, -1, 1) * 32767).astype(np.int16)])
        while len(self._waiting) >= self._piece:
            piece, self._waiting = self._waiting[: self._piece], self._waiting[self._piece :]
            self._hear(piece)
            self._settle()
        return [] if self._confidence else self._found[before:]

    def end(self) -> Sequence[Interval]:
        if len(self._waiting):
            self._hear(self._waiting)
        if not self._fed or self._loudness.loudest() < _FAINT:
            raise Refused("there is no speech")
        self._decoder.end_utt()
        words, least, noisy = self._words(), _LEAST, self._loudness.floor() > _NOISE
        if self._decoder.hyp() is None or self._next - self._first - 1 not in words:
            if self._first or not noisy:
                raise Refused(_NO_FIT)
            words, least = self._look_again(), _LEAST_AGAIN
        silent = self._loudness.silent()
        outside = 0.0 if noisy else self._outside(silent)
        if outside > _OUTSIDE:
            raise Refused(_NO_FIT)
        for index in range(len(self._found) - self._first, self._next - self._first):
            self._add(*words[index], silent)
        if self._confidence or noisy or outside > _UNSURE:
            self._rate_words()
            sure = [each.confidence or 0.0 for each in self._found[self._first :]]
            if sum(sure) < least * len(sure):
                raise Refused(_NO_FIT)
        if not self._confidence:
            self._found = [Interval(each.start, each.end) for each in self._found]
        return self._found

    def _begin_group(self, begin: int, samples: NDArray[np.int16]) -> None:
        """Go on with the next group, whose samples begin at `begin`."""
        self._first, self._next = len(self._found), self._cuts.pop(0)
        self._begin = begin
        self._kept: list[NDArray[np.int16]] = []
        units, tail = self._units[self._first : self._next], self._units[self._next : self._next + _TAIL]
        self._grammar = self._engine.grammar(units, tail)
        self._decoder = self._engine.decoder(self._grammar, self._rate, {})
        if len(samples):
            self._decode(samples)

    def _hear(self, piece: NDArray[np.int16]) -> None:
        self._loudness.feed(piece.astype(np.float32) / 32768)
        self._fed += len(piece)
        self._decode(piece)

    def _decode(self, piece: NDArray[np.int16]) -> None:
        self._kept.append(piece)
        self._decoder.process_raw(piece.tobytes(), full_utt=False)

    def _words(self) -> dict[int, tuple[int, int]]:
        """Begin and end in samples of each unit that the best path has so far, by its place in the group."""
        found: dict[int, tuple[int, int]] = {}
        for each in self._decoder.seg() or ():
            unit = unit_of(each.word)
            if unit is not None:
                start, end = (self._begin + at * self._shift for at in (each.start_frame, each.end_frame + 1))
                found[unit] = (found[unit][0] if unit in found else start, end)
        return found

    def _settle(self) -> None:
        words = self._words()
        silent = None
        while (index := len(self._found) - self._first) + 1 in words and index in words:
            if words[index][1] + SETTLED * self._rate > self._fed:
                return
            silent = self._loudness.silent() if silent is None else silent
            self._add(*words[index], silent)
            if len(self._found) == self._next:
                self._end_group()
                return

    def _end_group(self) -> None:
        if self._confidence:
            self._decoder.end_utt()
            self._rate_words()
        begin = self._found[-1].end
        self._begin_group(begin, np.concatenate(self._kept)[begin - self._begin :])

    def _add(self, start: int, end: int, silent: NDArray[np.bool_]) -> None:
        start, end = trimmed(start, min(end, self._fed), silent, self._loudness.step)
        before = self._found[-1].end if self._found else 0
        start = min(max(start, before), self._fed)
        self._found.append(Interval(start, max(start, end)))

    def _outside(self, silent: NDArray[np.bool_]) -> float:
        """The share of the loud frames of the group that are in no word."""
        step = self._loudness.step
        loud = ~silent
        loud[: self._begin // step] = False
        inside = np.zeros(len(loud), np.bool_)
        for start, end in self._words().values():
            inside[start // step : -(-end // step)] = True
        return float((loud & ~inside).sum() / max(1, loud.sum()))

    def _look_again(self) -> dict[int, tuple[int, int]]:
        """Decode noisy speech, of which the decoder has lost the path, without losing any. That finds any text, so the
        scores have to say whether it is there."""
        self._decoder = self._engine.decoder(self._grammar, self._rate, _WIDE)
        for piece in self._kept:
            self._decoder.process_raw(piece.tobytes(), full_utt=False)
        self._decoder.end_utt()
        words = self._words()
        if self._decoder.hyp() is None or len(words) < len(self._units):
            raise Refused(_NO_FIT)
        self._found = []
        return words

    def _rate_words(self) -> None:
        """Give the units of the group their confidence, by a second pass."""
        decoder = self._decoder
        decoder.set_alignment()
        decoder.start_utt()
        for piece in self._kept:
            decoder.process_raw(piece.tobytes(), full_utt=False)
        decoder.end_utt()
        scores: dict[int, list[tuple[int, int]]] = {}
        for each in decoder.get_alignment() or ():
            if (unit := unit_of(each.name)) is not None:
                scores.setdefault(unit, []).append((each.score, each.duration))
        for index, parts in scores.items():
            place = self._first + index
            if place < len(self._found):
                score = sum(part for part, _ in parts) / max(1, sum(frames for _, frames in parts))
                sure = 1 / (1 + math.exp(min(50.0, (_MIDDLE - score) / _SPREAD)))
                self._found[place] = Interval(self._found[place].start, self._found[place].end, round(sure, 3))


def _groups(units: Sequence[Unit]) -> list[int]:
    """Where the groups of a text end: at a sentence's end, if there is one."""
    cuts, begin = [], 0
    while len(units) - begin > _MOST + _TAIL:
        places = range(begin + _FEWEST, begin + _MOST + 1)
        ends = [place for place in places if _ENDS.search(units[place - 1].text)]
        begin = ends[-1] if ends else begin + _MOST
        cuts.append(begin)
    return [*cuts, len(units)]


def trimmed(start: int, end: int, silent: NDArray[np.bool_], step: int) -> tuple[int, int]:
    """The edges of a word in samples, moved to its sound: a decoder sometimes gives it the pause beside it, with the
    tail of the word before.

    Args:
        start, end: as the decoder found them.
        silent: of each frame of the speech.
        step: samples of a frame.
    """
    first, last = start // step, -(-end // step)
    runs = runs_of(silent[first:last])
    begin, stop = 0, last - first
    for a, b in runs:
        if (a == 0 and b >= _AT_EDGE) or (0 < a <= _NEAR and b - a >= _PAUSE):
            begin = int(b)
    for a, b in runs[::-1]:
        silence, at_edge = b - a, b == stop
        if a >= begin and silence >= (_AT_EDGE if at_edge else _PAUSE) and (at_edge or b >= stop - _NEAR):
            stop = int(a)
    if begin >= stop:
        return start, end  # all of it is silent
    return (start if begin == 0 else (first + begin) * step), (end if stop == last - first else (first + stop) * step)
