"""How English words are pronounced: pocketsphinx's dictionary, and letter rules for words that it lacks.

A pronunciation is a text such as `HH AH L OW`, in the 39 phones of the acoustic model.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path

PHONES = re.findall(
    r"\w+", "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH"
)
_VARIANT = re.compile(rb"\(\d+\)$")
_RULES = """
tion SH AH N|sion ZH AH N|tious SH AH S|cious SH AH S|ough AO|augh AO|eigh EY|igh AY|tch CH|dge JH|sch SH|eau OW
ch CH|ck K|sh SH|th TH|ph F|wh W|qu K W|gh G|ng NG|kn N|wr R|ps$ P S|ai EY|ay EY|ea IY|ee IY|ei EY|eu Y UW|ew UW
ie IY|oa OW|oo UW|ou AW|ow OW|oi OY|oy OY|au AO|aw AO|ue UW|ar AA R|er ER|ir ER|or AO R|ur ER|ce S|ci S IH|cy S IY
ge JH|gi JH IH|bb B|cc K|dd D|ff F|gg G|ll L|mm M|nn N|pp P|rr R|ss S|tt T|zz Z|e$ |y$ IY
a AE|b B|c K|d D|e EH|f F|g G|h HH|i IH|j JH|k K|l L|m M|n N|o OW|p P|q K|r R|s S|t T|u AH|v V|w W|x K S|y Y|z Z
"""
_SOUNDS: dict[str, str] = dict(re.findall(r"([^\s|]+) ([A-Z ]*)", _RULES))
_LETTERS = re.compile("|".join(sorted((re.escape(key).replace(r"\$", "$") for key in _SOUNDS), key=len, reverse=True)))


class Dictionary:
    """The words of a dictionary file, which is mapped and searched, not read. Lines are sorted by their word; another
    pronunciation of it, such as `the(2)`, is on the next lines.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def pronunciations(self, word: str) -> list[str]:
        """Those of a word in lower case; empty if it is unknown."""
        key = word.encode()
        low, high = 0, len(self._lines)
        while low < high:  # the first line whose word is not before this one
            middle = self._begin((low + high) // 2)
            if self._word(middle)[0] < key:
                low = self._end(middle)
            else:
                high = middle
        found = []
        while low < len(self._lines) and (line := self._word(low))[0] == key:
            found.append(line[1])
            low = self._end(low)
        return found

    def _begin(self, place: int) -> int:
        """Where the line begins in which this place is."""
        return self._lines.rfind(b"\n", 0, place) + 1

    def _end(self, place: int) -> int:
        """Where the next line begins."""
        end = self._lines.find(b"\n", place)
        return len(self._lines) if end < 0 else end + 1

    def _word(self, begin: int) -> tuple[bytes, str]:
        word, _, phones = self._lines[begin : self._end(begin)].strip().partition(b" ")
        return _VARIANT.sub(b"", word), phones.decode()


def by_rules(word: str) -> str:
    """The pronunciation of a word of a to z as its letters say it; empty if they say nothing."""
    found = []
    for each in _LETTERS.finditer(word):
        last = f"{each[0]}$"  # a rule for the end of a word
        found.append(_SOUNDS[last if each.end() == len(word) and last in _SOUNDS else each[0]])
    return " ".join(filter(None, found))
