"""What is spoken one after the other: the spans of one or several texts, with the silences between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import regex

from .pieces import Plan, Silence, Span
from .prosody import LEAST_RATE, MOST_RATE
from .sentences import LINE_ENDS, SPOKEN

MOST_SILENCE = 300.0
"""Seconds between two parts: it is made at once."""

_TURN = regex.compile(r"(?P<name>[^\s:][^:]{0,99}?)[^\S\n]*:(?:\s|\Z)")


class Planned(NamedTuple):
    """The plan of one text."""

    plan: Plan
    rate: float = 1.0
    """Factor of its tempo, beside those in the text."""
    pause: float = 0.0
    """Seconds of silence behind it."""


@dataclass(frozen=True)
class Part:
    """A span that has something to speak."""

    turn: int
    """Which of the texts it is from."""
    span: Span
    pause: float
    """Seconds of silence before it."""
    rate: float
    """Factor of the tempo in all."""

    def written(self, begin: int, first: int, last: int) -> tuple[int, int]:
        """Where a part [first, last) of its text is in another one, in which the text that it is from begins there."""
        start, end = self.span.written(first, last)
        return begin + start, begin + end


@dataclass(frozen=True)
class Sequence:
    """All of the texts."""

    parts: tuple[Part, ...]
    pause: float
    """Seconds of silence behind the last one."""
    marks: tuple[tuple[str, int, int], ...]
    """Name, the part that it is in or before, and characters of it before the mark."""


def in_sequence(texts: Iterable[Planned]) -> Sequence:
    """Texts one after the other.

    Raises:
        ValueError: there is nothing to speak, or too much silence in one place, or a tempo is out of range.
    """
    parts, marks, pause = list[Part](), list[tuple[str, int, int]](), 0.0
    for turn, (plan, rate, behind) in enumerate(texts):
        begins = list[int]()  # of each item: the number of parts before it
        for item in plan.items:
            begins.append(len(parts))
            if isinstance(item, Silence):
                pause += item.seconds
            elif SPOKEN.search(item.text):
                parts.append(Part(turn, item, pause, checked_rate(rate * item.style.rate)))
                pause = 0.0
        begins.append(len(parts))
        marks += [(mark.name, begins[mark.item], mark.character) for mark in plan.marks]
        pause += behind
    if any(each > MOST_SILENCE for each in (pause, *(part.pause for part in parts))):
        raise ValueError(f"`text` has more than {MOST_SILENCE:g} s of silence in one place; make it shorter")
    if not parts:
        raise ValueError("`text` has nothing to speak; it needs at least one letter or digit")
    return Sequence(tuple(parts), pause, tuple(marks))


def checked_rate(rate: float) -> float:
    """A factor of the tempo in all.

    Raises:
        ValueError: it is too small or too large.
    """
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise ValueError(
            f"`speed` and the rates of the text are {rate:g} together; {LEAST_RATE} to {MOST_RATE:g} is possible"
        )
    return rate


def turns_of(script: str) -> list[tuple[str, str]]:
    """Who says what in a dialogue such as `Ada: Good morning.`, a turn a line. A line without a name goes on with the
    turn before.

    Raises:
        ValueError: the first line has no name.
    """
    turns = list[tuple[str, str]]()
    for line in regex.split(rf"[{LINE_ENDS}]+", script):
        found = _TURN.match(line.strip())
        if found is not None:
            turns.append((found["name"], line.strip()[found.end() :].strip()))
        elif line.strip() and not turns:
            raise ValueError("a script begins with a name and a colon, such as `Ada: Good morning.`")
        elif line.strip():
            turns[-1] = turns[-1][0], f"{turns[-1][1]} {line.strip()}".strip()
    return [(name, text) for name, text in turns if text]
