"""Names of speakers, and the words that name model types and modes.

A name is 1 to 64 letters (of any script, with their combining marks), digits, spaces and `. _ -`, without a leading
dot. Two names are the same speaker if they differ only in case or in how Unicode composes their characters (canonical
caseless matching, The Unicode Standard, section 3.13, definition D145).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from voice_clone.errors import InvalidArgument

MOST_RESERVED = 1000
MAX_LENGTH = 64  # characters after normalisation
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class SpeakerName(NamedTuple):
    """A name as shown, and its key."""

    text: str
    key: str


@lru_cache(maxsize=4096)
def parse_name(raw: str) -> SpeakerName:
    """The name in NFC without outer spaces, and its key.

    Raises:
        InvalidArgument: it is not a valid name; says why.
    """
    if len(raw) > 4 * MAX_LENGTH:
        raise InvalidArgument(f"the `name` has {len(raw)} characters; at most {MAX_LENGTH} are allowed")
    text = unicodedata.normalize("NFC", raw).strip(" ")
    if not 1 <= len(text) <= MAX_LENGTH:
        raise InvalidArgument(f"the `name` has {len(text)} characters; it must have 1 to {MAX_LENGTH}")
    if text[0] == ".":
        raise InvalidArgument("the `name` begins with a dot; it must begin with a letter, digit, _ or -")
    wrong = next((c for c in text if not _allowed(c)), None)
    if wrong is not None:
        raise InvalidArgument(
            f"the `name` holds the character U+{ord(wrong):04X}; letters, digits, spaces and . _ - are allowed"
        )
    if unicodedata.category(text[0])[0] == "M":
        raise InvalidArgument("the `name` begins with a combining mark; it must begin with a letter, digit, _ or -")
    return SpeakerName(text, unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold()))


class ReservedNames:
    """Names that an owner may not give to a speaker.

    Args:
        names: as given; `aura-*` reserves all names that begin with `aura-`. A text that cannot be a name is ignored.

    Raises:
        InvalidArgument: there are too many, or one is no text.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        if len(names) > MOST_RESERVED or not all(isinstance(name, str) for name in names):
            raise InvalidArgument(f"the option `reserved` must be a list of at most {MOST_RESERVED} names")
        self._keys, beginnings = set[str](), list[str]()
        for name in names:
            with suppress(InvalidArgument):
                key = parse_name(name.removesuffix("*")).key
                beginnings.append(key) if name.endswith("*") else self._keys.add(key)
        self._beginnings = tuple(beginnings)

    def __contains__(self, name: SpeakerName) -> bool:
        return name.key in self._keys or name.key.startswith(self._beginnings)


def check_word(what: str, word: str) -> str:
    """A model type or a mode: 1 to 64 of letters, digits and `_ . -` in ASCII; it becomes a part of tensor names.

    Raises:
        InvalidArgument: it is something else.
    """
    if not _WORD.fullmatch(word):
        raise InvalidArgument(f"{what} must be 1 to 64 of A-Z, a-z, 0-9 and _ . -, and begin with a letter or digit")
    return word


def _allowed(character: str) -> bool:
    return character in " ._-" or unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd")
