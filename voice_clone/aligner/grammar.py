"""The grammar and the dictionary of a row of units, as pocketsphinx reads them.

Each word of them has a name of its own, `u3x1`: the second one of the unit 3. So what was decoded says where it belongs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from voice_clone_words.units import Unit

from voice_clone.aligner.dictionary import PHONES, Dictionary, by_rules
from voice_clone.aligner.readings import readings, spelled

_PLAIN = re.compile(r"[^\d]*|[^\w]*(?:\d{1,4}|[$€£¥]\d[\d,]*(?:\.\d\d)?|\d+\.\d+|\d{1,3}(?:,\d{3})+|\d+%|\d+[a-z]{2})[^\w]*")
_NAME = re.compile(r"u(\d+)x")
_SPELLED = 6  # letters of a word that may be spelled


def unit_of(name: str) -> int | None:
    """The unit of a decoded word; None for a silence."""
    found = _NAME.match(name)
    return None if found is None else int(found[1])


class Grammar:
    """What may be said for units in a row.

    Args:
        dictionary: of known words.
        units: all of them must be said.
        tail: may follow, one by one.

    Attributes:
        rules: in JSGF.
        words: the lines of a dictionary.
    """

    def __init__(self, dictionary: Dictionary, units: Sequence[Unit], tail: Sequence[Unit] = ()) -> None:
        self._dictionary = dictionary
        self._count = 0
        self.words: list[str] = []
        texts = [self._unit(index, unit.text) for index, unit in enumerate([*units, *tail])]
        spoken = " ".join(texts[: len(units)])
        rest = "".join(f" [ {text}" for text in texts[len(units) :]) + " ]" * len(tail)
        self.rules = f"#JSGF V1.0;\ngrammar speech;\npublic <speech> = {spoken}{rest};\n"

    def _unit(self, index: int, text: str) -> str:
        ways = readings(text)
        found = [" ".join(self._word(index, word) for word in way) for way in ways]
        if not found or not _PLAIN.fullmatch(text):
            found.append(self._anything(index))
        return found[0] if len(found) == 1 else f"( {' | '.join(found)} )"

    def _word(self, index: int, word: str) -> str:
        known = self._dictionary.pronunciations(word)
        if known:
            return self._entry(index, known)
        found = [self._entry(index, [sounds])] if (sounds := by_rules(word)) else []
        letters = spelled(word)
        if len(letters) <= _SPELLED:
            found.append(" ".join(self._entry(index, self._dictionary.pronunciations(each)) for each in letters))
        return f"( {' | '.join([*found, self._anything(index)])} )"

    def _anything(self, index: int) -> str:
        """Any phones: it takes names, codes and foreign words."""
        return f"( {' | '.join(self._entry(index, [phone]) for phone in PHONES)} )+"

    def _entry(self, index: int, pronunciations: Sequence[str]) -> str:
        name = f"u{index}x{self._count}"
        self._count += 1
        variants = (f"{name}({place})" if place > 1 else name for place in range(1, len(pronunciations) + 1))
        self.words += [f"{variant} {phones}" for variant, phones in zip(variants, pronunciations, strict=True)]
        return name
