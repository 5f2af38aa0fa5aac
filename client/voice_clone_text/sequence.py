"""What is spoken one after the other: the spans of one or several texts, with the silences between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import regex

from .pieces import Plan, Silence, Span
from .sentences import LINE_ENDS, SPOKEN

MOST_SILENCE = 300.0
"""Seconds between two parts: it is made at once."""

_TURN = regex.compile(r"(?P<name>[^\s:][^:]{0,99}?)[^\S\n]*:(?:\s|\Z)")


@dataclass(frozen=True)
class Part:
    """A span that has something to speak."""

    turn: int
    """Which of the texts it is from."""
    span: Span
    pause: float
    """Seconds of silence before it."""


@dataclass(frozen=True)
class Sequence:
    """All of the texts."""

    parts: tuple[Part, ...]
    pause: float
    """Seconds of silence behind the last one."""
    marks: tuple[tuple[str, int, int], ...]
    """Name, the part that it is in or before, and characters of it before the mark."""


def in_sequence(plans: Iterable[tuple[Plan, float]]) -> Sequence:
    """Texts one after the other, each with the seconds of silence behind it.

    Raises:
        ValueError: there is nothing to speak, or too much silence in one place.
    """
    parts, marks, pause = list[Part](), list[tuple[str, int, int]](), 0.0
    for turn, (plan, behind) in enumerate(plans):
        begins = list[int]()  # of each item: the number of parts before it
        for item in plan.items:
            begins.append(len(parts))
            if isinstance(item, Silence):
                pause += item.seconds
            elif SPOKEN.search(item.text):
                parts.append(Part(turn, item, pause))
                pause = 0.0
        begins.append(len(parts))
        marks += [(mark.name, begins[mark.item], mark.character) for mark in plan.marks]
        pause += behind
    if any(each > MOST_SILENCE for each in (pause, *(part.pause for part in parts))):
        raise ValueError(f"there are more than {MOST_SILENCE:g} s of silence in one place; make them shorter")
    if not parts:
        raise ValueError("there is nothing to speak; a text needs at least one letter or digit")
    return Sequence(tuple(parts), pause, tuple(marks))


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
