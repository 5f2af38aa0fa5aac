"""The messages of errors: `<slug>: <text>`.

A text has the names of inputs, options and parameters in backquotes, alone or with a value: `reference_text`,
`x_vector_only false`, and `options.style` for an option of a family. So an interface can put its own names there: the
command says --text. The first name is the one that is wrong. What a caller sent goes through `quoted`, which leaves no
backquote in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from .kinds import KINDS

MAX_QUOTED = 100  # characters of what a caller sent, so that what would be right has room, too
_NAME = re.compile(r"(?P<before>(?:the (?:option |parameter )?)?)`(?P<name>[a-z][\w.-]*)(?P<value>(?: [^`]+)?)`")
_SLUG = re.compile(rf"\b({'|'.join(kind.slug for kind in KINDS if kind.code)}): (.*)", re.DOTALL)


def quoted(value: object) -> str:
    """What a caller sent, in quotes and without backquotes; the beginning of it if it is long."""
    text = repr(value[:MAX_QUOTED] if isinstance(value, str) else value).replace("`", r"\x60")
    return text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 3]}..."


def split(message: str) -> tuple[str, str] | None:
    """Slug and text of a message, whatever Triton put before it; None: it has no slug."""
    found = _SLUG.search(message)
    return None if found is None else (found[1], found[2].strip())


def field(text: str) -> str | None:
    """The name that is wrong; None if the text has none."""
    found = _NAME.search(text)
    return None if found is None else found["name"]


def plain(text: str) -> str:
    """The text for people: without backquotes."""
    return text.replace("`", "")


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text for a caller that has other names."""

    def rename(found: re.Match[str]) -> str:
        new = names.get(found["name"])
        return found[0] if new is None else f"`{new}{found['value']}`"

    return _NAME.sub(rename, text)


def worded(text: str, word: Callable[[str, str], str]) -> str:
    """The text for people, in the words of an interface.

    Args:
        word: from a name and its value, "" for none, to what the interface calls it. A word of its own, such as --text,
            stands without "the" or "the option" before it.
    """

    def write(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"].strip()
        own = word(name, value)
        return own if own != f"{name} {value}".rstrip() else f"{found['before']}{own}"

    return plain(_NAME.sub(write, text))
