"""Which words a recogniser that is not ours hears: pocketsphinx, with its own English models.

At each place of the sentence stands the right word or one of 19 others, drawn from all words of the demo's training; a
listener who guesses is wrong in 95 % of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pocketsphinx
import soxr
from numpy.typing import NDArray

from tools.demo_voice import grammar

RATE = 16000  # of the acoustic model
CHOICES = 20
# The search keeps far less likely paths than by default. A grammar whose paths are all lost answers nothing, and every
# word of the sentence counts as wrong; so wide, that is rare unless the speech is of another sentence.
_WIDE = {"beam": 1e-100, "wbeam": 1e-80}
_SILENCE = np.zeros(RATE // 5, np.int16)  # the recogniser needs some around what is said


@dataclass(frozen=True)
class Errors:
    """Substituted, left out and added words of how many."""

    wrong: int = 0
    words: int = 0

    def __add__(self, other: Errors) -> Errors:
        return Errors(self.wrong + other.wrong, self.words + other.words)

    @property
    def rate(self) -> float:
        """Word error rate."""
        return self.wrong / max(1, self.words)


class Listener:
    """A recogniser. It keeps no memory of what it heard before."""

    def __init__(self) -> None:
        self._closed = pocketsphinx.Decoder(samprate=RATE, lm=None, loglevel="FATAL", **_WIDE)
        rules = grammar.rules().values()
        spoken = {word for rule in rules for each in rule for word in grammar.spoken_words(_without_symbols(each))}
        self._vocabulary = sorted(word for word in spoken if self._closed.lookup_word(word))

    def grammar(self, samples: NDArray[np.float32], sample_rate: int, text: str) -> Errors:
        """Errors against `text` when each word is one of 20.

        Raises:
            ValueError: the recogniser does not know a word of `text`.
        """
        words = grammar.spoken_words(text)
        for word in words:
            if not self._closed.lookup_word(word):
                raise ValueError(f"the recogniser does not know the word {word!r}")
        chance = random.Random(text)
        places = [" | ".join([word, *self._others(word, chance)]) for word in words]
        rules = "".join(f"<w{place}> = {choice};\n" for place, choice in enumerate(places))
        whole = " ".join(f"<w{place}>" for place in range(len(places)))
        self._closed.add_jsgf_string("sentence", f"#JSGF V1.0;\ngrammar g;\npublic <s> = {whole};\n{rules}")
        self._closed.activate_search("sentence")
        return word_errors(words, _hear(self._closed, samples, sample_rate))

    def _others(self, word: str, chance: random.Random) -> list[str]:
        return [other for other in chance.sample(self._vocabulary, CHOICES) if other != word][: CHOICES - 1]


def _without_symbols(expansion: str) -> str:
    return " ".join(part for part in expansion.split() if "<" not in part)


def _hear(decoder: pocketsphinx.Decoder, samples: NDArray[np.float32], sample_rate: int) -> list[str]:
    heard = soxr.resample(samples, sample_rate, RATE)
    pcm = np.concatenate([_SILENCE, (heard.clip(-1, 1) * 32767).astype(np.int16), _SILENCE])
    decoder.reinit_feat()  # forget the last one's mean spectrum
    decoder.start_utt()
    decoder.process_raw(pcm.tobytes(), full_utt=True)
    decoder.end_utt()
    found = decoder.hyp()
    return grammar.spoken_words(found.hypstr) if found else []


def word_errors(expected: list[str], heard: list[str]) -> Errors:
    """Levenshtein distance of the words."""
    row = list(range(len(heard) + 1))
    for done, word in enumerate(expected, start=1):
        before, row[0] = row[0], done
        for place, other in enumerate(heard, start=1):
            before, row[place] = row[place], min(before + (word != other), row[place] + 1, row[place - 1] + 1)
    return Errors(row[-1], len(expected))
