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
from typing import Any, NamedTuple

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
SETTLED = 0.2
"""Seconds after its end at which a word is settled, if the next one has begun."""
LOWEST_RATE = 14_000
"""Samples a second: the acoustic model hears up to 6800 Hz."""
_FEWEST, _MOST, _TAIL = 20, 40, 4  # units of a group, and those of the next one that its decoder also knows
_FAINT = 1e-6  # energy below which nothing is speech: -60 dB
_NOISE = 10 ** (-42 / 10)  # energy of the quiet frames, relative to the loud ones; in noise all frames are loud
_WIDE = {"beam": 1e-100, "wbeam": 1e-80, "pbeam": 1e-100}  # lose few paths, for noisy speech
_LEAST = 0.6, -30.0  # confidence of words, and score of a frame, with silences: means of a text that fits
_LEAST_AGAIN = (0.6, 0.4), -36.0  # the same of noisy speech that is decoded again; the confidence by its noise
_NOISES = -26.0, -19.0  # decibels of the quiet frames for these two; about 20 and 12 dB between speech and noise
_LEFT_OUT = 0.2  # of the loud frames, the share that a text which fits leaves out at most
_MIDDLE, _SPREAD = -36.0, 8.0  # scores of a frame; 1 % of right words and 94 % of wrong ones are below the first
_UNIT = math.log(1.0001)  # of a decoder's scores
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

    def start(self, units: Sequence[Unit], rate: int, language: str | None) -> SphinxAlignment:
        """See `Engine`. Where the language is unknown, it is English if letters are Latin and most words are known."""
        if rate < LOWEST_RATE:
            raise Refused(f"the rate of the speech is {rate} Hz; at least {LOWEST_RATE} is needed")
        if language is None and not self._is_english(units):
            raise Refused("the text does not look like English, the only language that is aligned here")
        if language is not None and language != "en":
            raise Refused(f"only English is aligned here, not {language!r}")
        return SphinxAlignment(self, units, rate)

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


class _Stretch(NamedTuple):
    """A part of a decoder's path."""

    start: int
    """In samples."""
    end: int
    score: float = 0.0
    """The sum of its frames' scores, the logarithms of their probability relative to that of the likeliest sound."""

    def longer(self, end: int, score: float) -> _Stretch:
        """With what follows, up to this end."""
        return _Stretch(self.start, end, self.score + score)


class _Path(NamedTuple):
    """What a decoder has found."""

    words: dict[int, _Stretch]
    """By the place of their unit in the group."""
    end: int
    """In samples; while samples come, it is that of a word."""
    score: float
    """Of a frame in the mean, with those of silences."""


class SphinxAlignment:
    """See `Alignment`."""

    def __init__(self, engine: PocketSphinx, units: Sequence[Unit], rate: int) -> None:
        self._engine = engine
        self._units = units
        self._rate = rate
        self._piece = round(PIECE * rate)
        self._shift = math.floor(rate / 100 + 0.5)  # samples of a frame of the decoder
        self._loudness = Loudness(rate)
        self._waiting = np.zeros(0, np.int16)
        self._fed = 0
        self._look_at = 0.0  # samples before which the next unit cannot be settled
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
        return self._found[before:]

    def end(self) -> Sequence[Interval]:
        if len(self._waiting):
            self._hear(self._waiting)
        if not self._fed or self._loudness.loudest() < _FAINT:
            raise Refused("there is no speech")
        self._decoder.end_utt()
        path = self._path()
        if self._cuts:
            raise Refused(_NO_FIT)  # it ends before its text does
        if not (self._whole(path) and self._fits(path, *_LEAST)):
            path = self._look_again()
        silent = self._loudness.silent()
        for index in range(len(self._found) - self._first, self._next - self._first):
            self._add(path.words[index], silent)
        return self._found

    def _whole(self, path: _Path) -> bool:
        """Whether the path has all units of the group."""
        return self._decoder.hyp() is not None and all(index in path.words for index in range(self._next - self._first))

    def _fits(self, path: _Path, confidence: float, score: float) -> bool:
        """Whether the words of the path have at least these means, and nearly all that is loud."""
        sure = sum(self._confidence(word) for word in path.words.values())
        enough = bool(path.words) and sure >= confidence * len(path.words) and path.score >= score
        return enough and self._left_out(path) <= _LEFT_OUT

    def _left_out(self, path: _Path) -> float:
        """The share of the loud frames up to the end of the path that is in none of its words."""
        step = self._loudness.step
        loud = self._loudness.loud()[: path.end // step]
        loud[: self._begin // step] = False
        count = loud.sum()
        for word in path.words.values():
            loud[word.start // step : -(-word.end // step)] = False
        return float(loud.sum() / max(1, count))

    def _confidence(self, word: _Stretch) -> float:
        score = word.score / max(1, (word.end - word.start) / self._shift)
        return 1 / (1 + math.exp(min(50.0, (_MIDDLE - score) / _SPREAD)))

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

    def _path(self) -> _Path:
        """The best path so far."""
        words, whole = dict[int, _Stretch](), _Stretch(self._begin, self._begin)
        for each in self._decoder.seg() or ():
            score = math.log(max(each.ascore, 1e-300)) / _UNIT
            start, end = (self._begin + at * self._shift for at in (each.start_frame, each.end_frame + 1))
            whole = whole.longer(end, score)
            if (unit := unit_of(each.word)) is not None:
                words[unit] = words.get(unit, _Stretch(start, start)).longer(end, score)
        return _Path(words, whole.end, whole.score / max(1, (whole.end - whole.start) / self._shift))

    def _settle(self) -> None:
        if self._fed < self._look_at:
            return
        path = self._path()
        words, silent, fits = path.words, self._loudness.silent(), None
        while True:
            index = len(self._found) - self._first
            self._look_at = (words[index].end if index in words else self._fed) + SETTLED * self._rate
            if self._fed < self._look_at or index + 1 not in words:
                return
            fits = self._fits(path, *_LEAST) if fits is None else fits
            if not fits:  # it may be decoded once more
                return
            self._add(words[index], silent)
            if len(self._found) == self._next:
                begin = self._found[-1].end
                self._begin_group(begin, np.concatenate(self._kept)[begin - self._begin :])
                return

    def _add(self, word: _Stretch, silent: NDArray[np.bool_]) -> None:
        start, end = trimmed(word.start, min(word.end, self._fed), silent, self._loudness.step)
        before = self._found[-1].end if self._found else 0
        start = min(max(start, before), self._fed)
        self._found.append(Interval(start, max(start, end), round(self._confidence(word), 3)))

    def _look_again(self) -> _Path:
        """Decode noisy speech, of which the decoder has lost the path, once more: with wide beams, and as a whole, so
        that its features are normalised by all of it. It may then have found another text, so look at the scores."""
        if self._first or self._loudness.floor() < _NOISE or self._loudness.steady():
            raise Refused(_NO_FIT)
        self._decoder = self._engine.decoder(self._grammar, self._rate, _WIDE)
        self._decoder.process_raw(np.concatenate(self._kept).tobytes(), full_utt=True)
        self._decoder.end_utt()
        path = self._path()
        confidences, score = _LEAST_AGAIN
        confidence = float(np.interp(10 * math.log10(self._loudness.floor()), _NOISES, confidences))
        if not (self._whole(path) and self._fits(path, confidence, score)):
            raise Refused(_NO_FIT)
        words = (path.words[index] for index in range(self._next))
        pairs = zip(self._found, words, strict=False)
        if any(each.end <= word.start or each.start >= word.end for each, word in pairs):
            self._found = []  # what was settled is elsewhere
        return path


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
