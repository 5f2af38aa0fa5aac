"""Numbers, dates, money, units, addresses and a few abbreviations as words, in windows round what triggers them.

A window has the word before its trigger and the two behind it, in scripts without spaces four characters on either
side; windows that overlap are one. Everything else stays as it is, character by character. A window ends at the end of
a sentence or line, and is decided when the word behind it is there, so nothing depends on how a text is divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import regex

from .held import Change, Stage
from .languages import code_of
from .normalizers import CODES, Normalizer, normalizer_of
from .pieces import Style

Normalize = Literal["off", "on", "numbers"]

_MOST, _MOST_JOINED = 200, 120  # characters of a window, and of several that overlap: time grows faster than they do
_MOST_NAMED = 5  # pieces in a warning
_NEAR = 4  # characters on either side, in scripts without spaces
_CHARACTER = regex.compile(r".", regex.DOTALL)
_WORD = regex.compile(r"(?:\S|[\u00a0\u202f])+")  # spaces that do not break belong to numbers
_SPACE = regex.compile(r"[^\S\u00a0\u202f]")
_LINE_END = regex.compile(r"[\n\x0b\x0c\r\x85\u2028\u2029]")
_STOP = regex.compile(r"[.!?…][\p{Pe}\p{Pf}\"']*\Z")
_BEGINS = regex.compile(r"[\p{P}]*\p{Lu}")
_OPENED = regex.compile(r"[\p{Ps}\p{Pi}\"„]")
_CLOSED = regex.compile(r"[\p{Pe}\p{Pf}\"“][\p{P}]*\Z")
_OPEN = regex.compile(r"[\p{Ps}\p{Pi}\"'„¿¡*_]*")
_CLOSE = regex.compile(r"[\p{Pe}\p{Pf}\"'.,;:!?…*_]*\Z")
_DIGIT = regex.compile(r"\p{Nd}")
_TRIGGER = regex.compile(r"[\p{Nd}\p{Sc}@]|://|\bwww\.")
_ROMAN = {
    "en": regex.compile(r"\P{L}*[IVX]{2,}\P{L}*"),
    "es": regex.compile(r"\P{L}*[IVX]{2,}\P{L}*"),
    "fr": regex.compile(r"\P{L}*[IVX]+er?\P{L}*"),
}
_ABBREVIATIONS = {
    "en": {"etc."},
    "de": {"usw.", "bzw.", "z.b.", "d.h.", "ca.", "nr.", "std.", "mio.", "mrd."},
    "fr": {"etc."},
    "es": {"etc.", "ee.", "uu."},
}
_ORDINAL = regex.compile(r"\p{Nd}{1,2}\.")
_RUN = regex.compile(r"[^\s\p{Han}\p{Hiragana}\p{Katakana}\p{P}ー々]|[-.,:/%@#&*+'~〜～]", regex.VERSION1)
_RUNS = regex.compile(rf"(?:{_RUN.pattern})+", regex.VERSION1)
_BARRIER = regex.compile(rf"[。！？；!?;]|{_LINE_END.pattern}")


class _Word(NamedTuple):
    start: int
    end: int
    trigger: bool
    ends: bool
    """Whether no window goes on behind it, as far as that is certain."""


@dataclass
class _Window:
    start: int
    end: int
    last: int
    """Its last word."""
    stops: bool
    """Whether a sentence ends there."""


class NumberStage(Stage):
    """Reads numbers in words, in the language of their style; in others it leaves them.

    Args:
        kinds: `numbers`: only what has a digit.
    """

    def __init__(self, kinds: Normalize) -> None:
        super().__init__()
        self._kinds = kinds
        self._left = dict[str, None]()
        self._unread = False

    @property
    def warnings(self) -> list[str]:
        """Sentences: what stays as it is written."""
        warnings = [f"no `language` that numbers can be read in: {', '.join(CODES)}"] if self._unread else []
        if self._left:
            shown = ", ".join(repr(text) for text in [*self._left][:_MOST_NAMED])
            warnings.append(f"{shown}{' and others' if len(self._left) > _MOST_NAMED else ''}: not read in words")
        return warnings

    def changes(self, text: str, style: Style, final: bool) -> tuple[list[Change], int]:
        code = code_of(style.language)
        if code not in CODES:
            self._unread = self._unread or _DIGIT.search(text) is not None
            return [], len(text)
        reader = normalizer_of(code)
        if reader.spaced:
            windows, settled = self._among_words(text, code, final)
        else:
            windows, settled = self._among_characters(text, reader.most, final)
        changes = [change for window in windows if (change := self._change(text, window, reader, code))]
        return changes, settled

    def _change(self, text: str, window: _Window, reader: Normalizer, code: str) -> Change | None:
        """What is spoken in place of a window; None if it stays."""
        written = text[window.start : window.end]
        begin = _OPEN.match(written).end()
        abbreviated = written.split()[-1].casefold() in _ABBREVIATIONS.get(code, ())
        end = len(written) if abbreviated else _CLOSE.search(written).start()
        piece = written[begin:end]
        spoken = reader.spoken(piece)
        if spoken is None:
            self._left[" ".join(piece.split())[:60]] = None
            return None
        if piece.endswith(".") and not spoken.endswith(".") and window.stops:
            spoken += "."  # it was also the stop of the sentence
        return _difference(piece, spoken, window.start + begin, reader.spaced)

    def _among_words(self, text: str, code: str, final: bool) -> tuple[list[_Window], int]:
        """The windows whose end is certain, and up to where the text is."""
        words, long = self._words(text, code)
        known = len(words) if final or long or _SPACE.match(text[-1:]) else len(words) - 1
        windows, certain = list[_Window](), True
        for index in (index for index in range(known) if words[index].trigger):
            first = index if index == 0 or words[index - 1].ends else index - 1
            last = index
            while last < min(index + 2, known - 1) and not words[last].ends:
                last += 1
            certain = final or last + 1 < known
            stops = words[last].ends or last + 1 == len(words)
            before = windows[-1] if windows else None
            if before is not None and first <= before.last:
                if words[last].end - before.start <= _MOST_JOINED:
                    before.end, before.last, before.stops = words[last].end, last, stops
                    continue
                if index <= before.last:
                    continue  # it is read without what follows it
                first = index
            windows.append(_Window(words[first].start, words[last].end, last, stops))
        if final:
            return windows, len(text)
        if not certain:
            return windows[:-1], windows[-1].start
        return windows, len(text) if long else words[known - 1].start if known > 0 else 0

    def _words(self, text: str, code: str) -> tuple[list[_Word], bool]:
        """The words of a text, of which the last one may go on; whether that is longer than a window."""
        found = [*_WORD.finditer(text)]
        longs = [each.end() - each.start() > _MOST for each in found]
        if found and found[0].start() == 0 and self.before and not _SPACE.match(self.before):
            longs[0] = True  # the rest of one
        words = list[_Word]()
        for index, each in enumerate(found):
            ends = longs[index]
            if index + 1 < len(found):
                following = found[index + 1]
                gap = _LINE_END.search(text, each.end(), following.start())
                ends = ends or longs[index + 1] or gap is not None or self._ends(each[0], following[0], code)
            words.append(_Word(each.start(), each.end(), not longs[index] and self._triggers(each[0], code), ends))
        return words, bool(longs) and longs[-1] and found[-1].end() == len(text)

    def _triggers(self, word: str, code: str) -> bool:
        if _DIGIT.search(word):
            return True
        if self._kinds == "numbers":
            return False
        roman = _ROMAN.get(code)
        return (
            _TRIGGER.search(word) is not None
            or word.casefold() in _ABBREVIATIONS[code]
            or (roman is not None and roman.fullmatch(word) is not None)
        )

    def _ends(self, word: str, following: str, code: str) -> bool:
        """Whether a sentence, a quotation or brackets end or begin between two words."""
        if _OPENED.match(following) or _CLOSED.search(word):
            return True
        if not _STOP.search(word) or not _BEGINS.match(following):
            return False
        if code == "de" and _ORDINAL.fullmatch(word):
            return False
        abbreviated = word.casefold() in _ABBREVIATIONS[code]
        return not (abbreviated and following.casefold() in _ABBREVIATIONS[code])

    def _among_characters(self, text: str, most: int, final: bool) -> tuple[list[_Window], int]:
        """As `_among_words`, in a script without spaces."""
        runs = [found.span() for found in _RUNS.finditer(text)]
        known = len(text)
        if not final and runs and runs[-1][1] == known and known - runs[-1][0] <= most:
            known = runs[-1][0]  # it may go on
        if runs and runs[0][0] == 0 and self.before and _RUNS.match(self.before):
            del runs[0]  # the rest of a long one
        windows, certain = list[_Window](), True
        for start, end in runs:
            if start >= known or end - start > most or not _DIGIT.search(text, start, end):
                continue
            barriers = [found.end() for found in _BARRIER.finditer(text, max(0, start - _NEAR), start)]
            begin = barriers[-1] if barriers else max(0, start - _NEAR)
            barrier = _BARRIER.search(text, end, end + _NEAR)
            stop = barrier.start() if barrier else min(end + _NEAR, len(text))
            certain = final or barrier is not None or known >= end + 2 * _NEAR
            if windows and begin < windows[-1].end:
                if stop - windows[-1].start <= most:
                    windows[-1].end = stop
                    continue
                windows[-1].end = min(windows[-1].end, start)
                begin = windows[-1].end
            windows.append(_Window(begin, stop, 0, False))
        if final:
            return windows, len(text)
        if not certain:
            return windows[:-1], windows[-1].start
        return windows, max(windows[-1].end if windows else 0, known - _NEAR, 0)


def _difference(piece: str, spoken: str, at: int, spaced: bool) -> Change | None:
    """The change from a piece of text that begins at a place to what is spoken; None if there is none, or it would only
    drop something."""
    pattern = _WORD if spaced else _CHARACTER
    old = [found.span() for found in pattern.finditer(piece)]
    new = pattern.findall(spoken)
    while old and new and piece[slice(*old[0])] == new[0]:
        del old[0], new[0]
    while old and new and piece[slice(*old[-1])] == new[-1]:
        old.pop()
        new.pop()
    if not old or not new:
        return None
    return Change(at + old[0][0], at + old[-1][1], (" " if spaced else "").join(new))
