"""The grammar and the dictionary of a row of units, for pocketsphinx.

Each word of them has a name of its own: `u3x1` is one of the unit 3. So what was decoded says where it belongs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from voice_clone_words.units import Unit

from voice_clone.aligner.dictionary import PHONES, Dictionary, by_rules
from voice_clone.aligner.readings import readings, spelled

_PLAIN = re.compile(  # tokens of which the readings are all that one would say
    r"\D*|\W*(?:\d{1,4}|[$€£¥]\d[\d,]*(?:\.\d\d)?|\d+\.\d+|\d{1,3}(?:,\d{3})+|\d+%|\d+[a-z]{2})\W*"
)
_NAME = re.compile(r"u(\d+)x")
_SPELLED = 6  # letters of a word that may be spelled


def unit_of(name: str) -> int | None:
    """The unit of a decoded word; None for a silence."""
    found = _NAME.match(name)
    return None if found is None else int(found[1])


class Grammar:
    """What may be said for units in a row, as a graph of states that words lead from one to another.

    A state is never left without a word: pocketsphinx has no scores for a path that does.

    Args:
        dictionary: of known words.
        units: all of them must be said.
        tail: may follow, one by one.

    Attributes:
        arcs: from, to, probability and word.
        start, final: states.
        words: the lines of a dictionary.
    """

    start, final = 0, 1

    def __init__(self, dictionary: Dictionary, units: Sequence[Unit], tail: Sequence[Unit] = ()) -> None:
        self._dictionary = dictionary
        self._count, self._states = 0, 2
        self.words: list[str] = []
        self.arcs: list[tuple[int, int, float, str]] = []
        here = self.start
        for index, unit in enumerate([*units, *tail]):
            there = self._state()
            self._unit(index, unit.text, here, [there] if index < len(units) - 1 else [there, self.final])
            here = there

    def _unit(self, index: int, text: str, here: int, there: Sequence[int]) -> None:
        ways = readings(text)
        for way in ways:
            self._row(index, way, here, there)
        if not ways or not _PLAIN.fullmatch(text):
            self._anything(index, here, there)

    def _row(self, index: int, words: Sequence[str], here: int, there: Sequence[int]) -> None:
        for word in words[:-1]:
            state = self._state()
            self._word(index, word, here, [state])
            here = state
        self._word(index, words[-1], here, there)

    def _word(self, index: int, word: str, here: int, there: Sequence[int]) -> None:
        known = self._dictionary.pronunciations(word)
        if known:
            self._entry(index, known, here, there)
            return
        if sounds := by_rules(word):
            self._entry(index, [sounds], here, there)
        letters = spelled(word)
        if letters and len(letters) <= _SPELLED:
            self._row(index, letters, here, there)
        self._anything(index, here, there)

    def _anything(self, index: int, here: int, there: Sequence[int]) -> None:
        """Any phones: they take names, codes and foreign words."""
        inside = self._state()
        for phone in PHONES:
            name = self._entry(index, [phone], here, [inside, *there])
            self.arcs += [(inside, state, 1.0, name) for state in (inside, *there)]

    def _entry(self, index: int, pronunciations: Sequence[str], here: int, there: Sequence[int]) -> str:
        """A word that leads from a state to others."""
        name = f"u{index}x{self._count}"
        self._count += 1
        variants = (f"{name}({place})" if place > 1 else name for place in range(1, len(pronunciations) + 1))
        self.words += [f"{variant} {phones}" for variant, phones in zip(variants, pronunciations, strict=True)]
        self.arcs += [(here, state, 1.0, name) for state in there]
        return name

    def _state(self) -> int:
        self._states += 1
        return self._states - 1
