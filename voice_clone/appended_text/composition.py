"""Where a text can be cut so that its parts can be composed (Unicode NFC) one by one; Unicode Annex 15."""

from __future__ import annotations

import functools
import sys
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

_JAMO = frozenset(map(chr, [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]))  # vowels and final consonants of Hangul


_HANGUL = frozenset(map(chr, [*range(0x1100, 0x1200), *range(0xAC00, 0xD7A4)]))


@functools.cache
def _pairs() -> tuple[frozenset[str], frozenset[str]]:
    """The characters that can be the first, and the second one of a composition."""
    decomposed = (unicodedata.decomposition(chr(point)).split() for point in range(sys.maxunicode + 1))
    pairs = [parts for parts in decomposed if len(parts) == 2 and not parts[0].startswith("<")]
    firsts, seconds = ({chr(int(parts[place], 16)) for parts in pairs} for place in (0, 1))
    return _HANGUL | firsts, _JAMO | seconds


@functools.lru_cache(maxsize=4096)
def starts_anew(character: str) -> bool:
    """Whether no composition crosses the place before a character, whatever stands around it.

    A character that Python's Unicode tables lack is taken for one that might be composed.
    """
    if character < "\u0300":
        return True
    first = unicodedata.normalize("NFD", character)[0]
    combines = unicodedata.combining(character) or unicodedata.combining(first)
    unknown = unicodedata.category(character) == "Cn"
    return not (combines or unknown or character in _pairs()[1] or first in _pairs()[1])


def settled_length(text: str) -> int:
    """How many of the first characters of `text` are composed alike whatever follows it."""
    length = len(text)
    while length and not starts_anew(text[length - 1]):
        length -= 1
    if length == len(text) and text and not _is_composed_with_marks(text[-1]):
        return length
    return max(0, length - 1)


@functools.lru_cache(maxsize=4096)
def _is_composed_with_marks(character: str) -> bool:
    """Whether a mark that follows a character may become one with it."""
    return character in _pairs()[0] or unicodedata.decomposition(character) != ""


class Composed:
    """A text after composition, and where its places are in the text before.

    Args:
        text: before.
        compose: NFC.

    Attributes:
        text: after.
    """

    def __init__(self, text: str, compose: Callable[[str], str]) -> None:
        self.text = compose(text)
        self._after: list[int] | None = None  # ends of parts that are composed by themselves, after and before
        if self.text != text:
            parts = list(_parts(text))
            self._before = list(accumulate(map(len, parts), initial=0))
            self._after = list(accumulate((len(compose(part)) for part in parts), initial=0))

    def before(self, place: int) -> int:
        """The place before composition; the next possible one, for a place inside of a part."""
        return place if self._after is None else self._before[bisect_left(self._after, place)]


def _parts(text: str) -> Iterator[str]:
    begin = 0
    for place in range(1, len(text)):
        if starts_anew(text[place]):
            yield text[begin:place]
            begin = place
    yield text[begin:]
