"""Find the names that somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

MOST = 3


def nearest(wrong: str, known: Iterable[str], fold: Callable[[str], str] = str.casefold) -> list[str]:
    """Return at most three known names that are like a wrong one, the most similar first.

    Args:
        fold: makes equal what does not count; by default case.
    """
    by_folded = {fold(name): name for name in known}
    found = difflib.get_close_matches(fold(wrong), by_folded, MOST)
    return [by_folded[name] for name in found]


def meant(wrong: str, known: Iterable[str]) -> str:
    """Return a part of a message, `did you mean Ada or Ida?`; empty if no known name is near."""
    found = nearest(wrong, known)
    return f"did you mean {' or '.join(found)}?" if found else ""
