"""The libraries that read numbers aloud: damga (en, de, fr, es) and wetext (zh, ja), an extra of the package.

They see short pieces of a text alone: over a whole one they change spaces, quotation marks and doubled words, and take
seconds. What they are known to read wrongly stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

_SPACES = re.compile(r"\s+")
_GROUPS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ADDRESS = re.compile(r"\bhttps?://([^\s,;]+)", re.IGNORECASE)

_DATE, _LARGE = r"\d{1,2}\.\d{1,2}\.(?:\d\d|\d{4})(?!\.?\d)", r"\d{1,3}(?:\.\d{3})+(?!\.?\d)"
_ALWAYS = (
    r"(?<!\d)[A-Za-z]\d",  # codes
    r"<\|",  # tags for a model
    rf"(?<![\d.])(?!{_DATE})(?!{_LARGE})\d+(?:\.\d+){{2,}}",  # versions, addresses
    r"\d:(?=\d)(?!\d\d(?!\d))",  # scores
)
_WRONG = {
    "en": r"\d{3}-\d{4}|\d{1,2}/\d{1,2}/\d{2,4}|°\s?C",  # telephone numbers; months and days in either order; Celsius
    "de": r"(?<![\d.,])1 [^\W\d_]",  # its gender
    "fr": r"",
    "es": r"M\$",
    "zh": r"%-|@",
    "ja": r"[〜～~@]|-\d[\d.]*℃",
}
CODES = tuple(_WRONG)
"""The languages that are read here."""


@dataclass(frozen=True)
class Normalizer:
    """How one language is read.

    Args:
        read: the library's.
        spaced: whether its words have spaces between them.
        most: characters of a piece; the library's time grows faster than that.
        wrong: finds what it reads wrongly.
    """

    read: Callable[[str], str]
    spaced: bool
    most: int
    wrong: re.Pattern[str]

    def spoken(self, piece: str) -> str | None:
        """What is spoken in place of a piece of text; None if the library fails, or is known to be wrong about it."""
        if len(piece) > self.most or self.wrong.search(piece):
            return None
        return _read(self.read, piece if self.spaced else _GROUPS.sub("", piece))


class Missing(ValueError):
    """The library that reads a language is not installed."""


@lru_cache
def normalizer_of(code: str) -> Normalizer:
    """The normalizer of a language; loaded when it is first asked for, which takes up to a second.

    Raises:
        Missing: it is not installed.
    """
    spaced = code not in ("zh", "ja")
    try:
        if spaced:
            from damga import TextNormalizer

            read = TextNormalizer(lang=code).normalize
        else:
            from wetext import Normalizer as WeText

            read = WeText(lang=code, operator="tn").normalize
    except ImportError:
        raise Missing(f"{'damga' if spaced else 'wetext'} is not installed, which reads numbers in {code}") from None
    wrong = "|".join(filter(None, (*_ALWAYS, _WRONG[code])))
    return Normalizer(read, spaced, 200 if spaced else 64, re.compile(wrong))


@lru_cache(4096)
def _read(read: Callable[[str], str], piece: str) -> str | None:
    try:
        spoken = read(_ADDRESS.sub(r"\1", _SPACES.sub(" ", piece)))
        for found in _ADDRESS.finditer(piece):
            spoken = spoken.replace(found[1], found[0])  # where it is not read
        return spoken
    except Exception:  # of any kind: the text stays as it is written
        return None
