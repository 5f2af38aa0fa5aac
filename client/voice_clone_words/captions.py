"""Captions of words: SRT, WebVTT and JSON.

Usual rules: at most two lines of 42 characters, 16 where the script is wide; 5/6 s to 7 s; at most 20 characters a
second, as far as there is room before the next caption; breaks at punctuation if possible, never inside a word.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import regex

from .words import Word

SHORTEST, LONGEST = 5 / 6, 7.0
"""Seconds of a caption; the first where there is room before the next."""
PER_SECOND = 20
"""Characters."""
GAP = 0.08
"""Seconds between captions, two frames of film."""
_LINES, _NARROW, _WIDE = 2, 42, 16
_IS_WIDE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
_SENTENCE_END = regex.compile(r"[.!?…。！？]['\"\p{Pe}\p{Pf}]*$")
_CLAUSE_END = regex.compile(r"[,;:—–、，；：]['\"\p{Pe}\p{Pf}]*$")
_SILENCE = 1.0  # seconds after which a caption ends


@dataclass(frozen=True)
class Caption:
    """Words that are shown together."""

    start: float
    end: float
    lines: tuple[tuple[Word, ...], ...]


def captions_of(words: Sequence[Word], text: str) -> list[Caption]:
    """The captions of a speech.

    Args:
        words: in order.
        text: of which their spans are; it says whether there is a blank between two of them.
    """
    width = _WIDE if _IS_WIDE.search(text) else _NARROW
    found: list[Caption] = []
    rest = list(words)
    while rest:
        lines = _first_lines(rest, text, width)
        shown = [word for line in lines for word in line]
        rest = rest[len(shown) :]
        found.append(Caption(shown[0].start, shown[-1].end, lines))
    return [
        _extended(caption, following.start if following else None, text)
        for caption, following in zip_longest(found, found[1:])
    ]


def _first_lines(words: list[Word], text: str, width: int) -> tuple[tuple[Word, ...], ...]:
    """The lines of the next caption."""
    most = 1
    while most < len(words):
        fits = len(_wrapped(words[: most + 1], text, width)) <= _LINES
        brief = words[most].end - words[0].start <= LONGEST
        flows = words[most].start - words[most - 1].end < _SILENCE
        if not (fits and brief and flows) or _SENTENCE_END.search(words[most - 1].text):
            break
        most += 1
    else:
        return _wrapped(words, text, width)
    if not _SENTENCE_END.search(words[most - 1].text):
        clause = [count for count in range(most, most // 2, -1) if _CLAUSE_END.search(words[count - 1].text)]
        most = clause[0] if clause else most
    return _wrapped(words[:most], text, width)


def _wrapped(words: Sequence[Word], text: str, width: int) -> tuple[tuple[Word, ...], ...]:
    """Words in lines of at most `width` characters, but for a word that alone is longer."""
    lines: list[list[Word]] = []
    for word in words:
        if lines and len(line_text([*lines[-1], word], text)) <= width:
            lines[-1].append(word)
        else:
            lines.append([word])
    return tuple(map(tuple, lines))


def _extended(caption: Caption, following: float | None, text: str) -> Caption:
    """The caption, shown until it can be read, if there is room."""
    letters = sum(len(line_text(line, text)) for line in caption.lines)
    wanted = min(max(SHORTEST, letters / PER_SECOND), LONGEST)
    end = max(caption.end, caption.start + wanted)
    if following is not None:
        end = max(min(end, following - GAP), min(caption.end, following))
    return Caption(caption.start, end, caption.lines)


def line_text(line: Sequence[Word], text: str) -> str:
    """A line: its words, with a blank where they are not written side by side."""
    parts = [(" " if before and text[before.span[1] : word.span[0]] else "", word) for before, word in _pairs(line)]
    return "".join(blank + " ".join(word.text.split()) for blank, word in parts)


def _pairs(line: Sequence[Word]) -> Iterator[tuple[Word | None, Word]]:
    return zip([None, *line[:-1]], line, strict=True)


def srt(words: Sequence[Word], text: str) -> str:
    """A file of SubRip."""
    cues = []
    for number, caption in enumerate(captions_of(words, text), start=1):
        times = f"{_clock(caption.start, ',')} --> {_clock(caption.end, ',')}"
        cues.append("\n".join([str(number), times, *(line_text(line, text) for line in caption.lines), ""]))
    return "\n".join(cues)


def vtt(words: Sequence[Word], text: str) -> str:
    """A file of WebVTT, with the time of each word inside its cue."""
    cues = ["WEBVTT\n"]
    for caption in captions_of(words, text):
        lines = []
        for line in caption.lines:
            shown = ""
            for before, word in _pairs(line):
                blank = " " if before and text[before.span[1] : word.span[0]] else ""
                time = "" if word is caption.lines[0][0] else f"<{_clock(word.start, '.')}>"
                shown += f"{blank}{time}{html.escape(' '.join(word.text.split()), quote=False)}"
            lines.append(shown)
        cues.append("\n".join([f"{_clock(caption.start, '.')} --> {_clock(caption.end, '.')}", *lines, ""]))
    return "\n".join(cues)


def as_json(words: Sequence[Word], text: str) -> str:
    """The words as JSON: the text, and a list of `Word.as_json`."""
    return json.dumps({"text": text, "words": [word.as_json() for word in words]}, ensure_ascii=False, indent=1) + "\n"


FORMATS: dict[str, Callable[[Sequence[Word], str], str]] = {".srt": srt, ".vtt": vtt, ".json": as_json}
"""What writes a file, by its suffix."""


def _clock(seconds: float, mark: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{whole:02}{mark}{milliseconds:03}"
