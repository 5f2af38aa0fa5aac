"""Sentence boundaries of a text, also while it is still being written.

The rules are those of Unicode's sentence boundaries (UAX #29), whose classes of stops, marks and letters cover all
scripts, tailored for speech: the word before a full stop is considered too, a line break may end a sentence, and an
uncertain boundary is none, because a missed one costs little and a wrong one is a pause inside a phrase. Each decision
reads a bounded piece of the text, and is made once no further text could change it: the sentences of a text, joined
ones too, do not depend on its increments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import regex

from .abbreviations import (
    ABBREVIATIONS,
    BEFORE_DATE,
    BEFORE_LABEL,
    BEFORE_NAME,
    BEFORE_NUMBER,
    BEFORE_ORDINAL,
    DATES,
    MAYBE,
    STARTS,
)

Granularity = Literal["sentence", "clause", "none"]
Ending = Literal["cut", "clause", "sentence", "paragraph"]

MIN_CHARACTERS = 12  # of a text that is whole from the start
MAX_CHARACTERS = 300
"""A longer text is spoken sentence by sentence.

Models learn from utterances of a sentence or two. They may leave words of a longer text out, and the server cannot see
that. 300 characters of any living script have at most 900 bytes, so they have fewer tokens than the 1,024 that a server
takes.
"""
_LOOKAHEAD = 256  # characters after the longest sentence that may determine its end; no tag is longer

LINE_ENDS = r"\n\x0b\x0c\r\x85\u2028\u2029"
"""Inside the brackets of a pattern: the characters that end a line, as Unicode has them."""

_FLAGS = regex.VERBOSE | regex.DOTALL | regex.VERSION1
_STOP = r"[\p{SB=STerm}\p{SB=ATerm}…；]+"
_CLAUSE = r"[\p{SB=SContinue}؛]+"
# After a stop: closing marks and emoji, white space, marks that open the next sentence, its first letter. A quotation
# mark that opens in one language and closes in another counts as closing only if no letter follows.
_BREAK = r"""
    (?: {marks} | (?= \s* (?:[{line_ends}]|\Z) ) )
    (?P<close>
        (?: [\p{{Pe}}\p{{Pf}}*_] | [\p{{Pi}}"'`] (?= [\s\p{{P}}`]|\Z ) | [^\S{line_ends}] » (?= [\s\p{{P}}]|\Z ) )*
        (?: [^\S{line_ends}]* (?&emoji) )*
    )
    (?P<space> \s* )
    (?P<open> [\p{{Ps}}\p{{Pi}}\p{{Pf}}\p{{Pd}}"'`*_\#>•+¿¡\s]* )
    (?P<next> .? )
    (?(DEFINE) (?P<emoji> [\p{{Extended_Pictographic}}\p{{Regional_Indicator}}] [\uFE0F\u200D\p{{Emoji_Modifier}}]* ) )
"""
_BREAKS: dict[str, Any] = {
    name: regex.compile(_BREAK.format(marks=rf"(?P<stop>{_STOP}) | (?P<clause>{clause})", line_ends=LINE_ENDS), _FLAGS)
    for name, clause in (("sentence", "(?!)"), ("clause", _CLAUSE))
}
_LINE_END = regex.compile(rf"[{LINE_ENDS}]")
_BLANK_LINE = regex.compile(r"\R\s*\R|\u2029")  # \R takes \r\n as one
_NEEDS_SPACE = regex.compile(r"[.!?․﹒‼‽⁇⁈⁉…]+")  # between letters these belong to a number, a name, an address
_DOT = regex.compile(r"\p{SB=ATerm}")
_DOTS = regex.compile(r"[\p{SB=ATerm}…]+")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]")  # scripts without a space behind a stop
_WIDE_CLAUSE = regex.compile(r"[、，：；،؛]")
_CLAUSE_END = regex.compile(r"(?:[\p{SB=SContinue}؛][\p{Pe}\p{Pf}\p{Pi}\"'’]*(?=\s)|[、，：；،؛])")
_CONTINUES = regex.compile(
    r"[[\p{SB=SContinue}--\p{Pd}]\p{SB=STerm}\p{SB=ATerm}؛\p{GCB=Extend}\p{GCB=SpacingMark}\p{GCB=ZWJ}]", _FLAGS
)
_LOWER = regex.compile(r"\p{SB=Lower}")
_CASED = regex.compile(r"[\p{SB=Lower}\p{SB=Upper}]")
_LAST_WORD = regex.compile(r"(?:\s|^)\p{P}*(\S{1,24})\Z")
_LAST_PART = regex.compile(r"[^-'’]*\Z")  # of l'ing, karl-marx-str
_NEXT_WORD = regex.compile(r"[\p{L}\p{M}\p{N}]*")
_LABEL = regex.compile(r"\p{N}.*|\p{L}|[IVXLC]{2,6}", _FLAGS)
_WORD_BEFORE = regex.compile(rf"(?:[^\S{LINE_ENDS}]|^)(\S{{1,24}})[^\S{LINE_ENDS}]+\p{{P}}*\S+\Z")
_LETTERS = regex.compile(r"(?:[\p{SB=Lower}\p{SB=Upper}]\.-?)*[\p{SB=Lower}\p{SB=Upper}]")
_SMALL_NUMBER = regex.compile(r"\d{1,2}")
_LIST_MARK = regex.compile(r"[-*+•#>]")
SPOKEN = regex.compile(r"[\p{L}\p{N}\p{Sc}%&]")
_CHARACTER = regex.compile(r"\X")
# What a model reads as a whole: a direction such as [whisper]; phonemes between their marks; any other mark, such as
# the tag of a speaker, which holds until the next one.
_TAGS = {
    "[": regex.compile(rf"\[[^\[\]{LINE_ENDS}]{{1,254}}\]"),
    "<|phoneme_start|>": regex.compile(rf"<\|phoneme_start\|>[^<{LINE_ENDS}]{{1,200}}<\|phoneme_end\|>"),
    "<|": regex.compile(r"<\|[\w:]{1,30}\|>"),
}  # by their beginnings; none has another one of its kind inside
_BEHIND_DIRECTION = regex.compile(r"\]\s*\Z")
_SPEAKER = regex.compile(r"<\|speaker:\d+\|>")
_WIDE = regex.compile(r"[\p{East_Asian_Width=Wide}\p{East_Asian_Width=Fullwidth}]")
_SURROGATE = regex.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True)
class Sentence:
    """A piece of a text that is spoken at once."""

    text: str
    """Without surrounding white space."""
    start: int
    """Its position in the whole text, in characters (code points)."""
    end: int
    ending: Ending
    """A cut of a sentence that is too long, a clause mark, a stop (or the end of a line or text), or a blank line."""

    @property
    def spoken(self) -> bool:
        """Whether it has a letter or digit. Only the last sentence of a text may have none."""
        return SPOKEN.search(self.text) is not None


def fitting(text: str, most: int, wide: int) -> int:
    """Return how many characters of a text count for at most `most`, if a wide one counts for `wide`. Characters that
    may follow the text are taken for narrow ones.
    """
    counted = 0
    for place, character in enumerate(text if wide > 1 and _WIDE.search(text) else ""):
        counted += wide if _WIDE.match(character) else 1
        if counted > most:
            return place
    return most


def size(text: str, wide: int) -> int:
    """Return for how many characters a text counts, if a wide one counts for `wide`."""
    return len(text) + (wide - 1) * len(_WIDE.findall(text))


class WholeCharacters:
    """Joins the halves of characters that a client which counts in UTF-16 has split."""

    def __init__(self) -> None:
        self._half = ""  # first half of a surrogate pair

    def feed(self, text: str, final: bool) -> str:
        """Return `text` without a half at its end, which may be completed. A half without the other becomes U+FFFD."""
        text, self._half = self._half + text, ""
        if _SURROGATE.search(text) is None:
            return text
        if not final and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class SentenceSplitter:
    """The sentences of one text that arrives in increments.

    Args:
        granularity: the end of a sentence: a stop; a stop or a clause mark; only the end of the text.
        min_characters: a shorter sentence is joined with the next one of its paragraph, the last one with the one
            before. Sentences wait for that; 0 joins none, which is for a text that is spoken while it is written.
        max_characters: a longer sentence is cut: after a clause mark in its second half, else at white space, else
            between two graphemes. A longer grapheme or tag stays whole.
        wide: for how many characters a wide one counts in `max_characters`, such as one of Chinese.

    Raises:
        ValueError: a value is invalid.
    """

    def __init__(
        self,
        granularity: Granularity = "sentence",
        *,
        min_characters: int = 0,
        max_characters: int = MAX_CHARACTERS,
        wide: int = 1,
    ) -> None:
        if granularity not in get_args(Granularity):
            raise ValueError(f"the granularity must be one of {', '.join(get_args(Granularity))}")
        if not 0 <= min_characters <= max_characters or max_characters < 1:
            raise ValueError("sentences need 0 <= min_characters <= max_characters and max_characters >= 1")
        self._break = _BREAKS.get(granularity)
        self._min = min_characters
        self._max = max_characters
        self._wide = wide
        self._text = ""  # the rest, which is in no sentence yet
        self._offset = 0  # the position of the rest in the whole text
        self._checked = 0  # the rest has no boundary up to here
        self._whole = WholeCharacters()
        self._unjoined: list[Sentence] = []  # at most two, which a further sentence may change
        self._speaker = ""  # the tag that holds at the beginning of the first sentence that was not returned

    def feed(self, text: str, final: bool = False) -> list[Sentence]:
        """Add to the text; returns the sentences that are certain now. `final` ends the text.

        A client that counts in UTF-16 may split a character: its halves are joined. A half without the other becomes
        U+FFFD.
        """
        self._text += self._whole.feed(text, final)
        found: list[Sentence] = []
        at = 0
        while True:
            while at < len(self._text) and self._text[at].isspace():
                at += 1
            most = self._most(at)
            length, ending = self._first(self._text[at : at + most + _LOOKAHEAD], most, final)
            if not length:
                break
            piece = self._text[at : at + length]
            found.append(Sentence(piece.rstrip(), self._offset + at, self._offset + at + len(piece.rstrip()), ending))
            at += length
            self._checked = 0
        self._text = self._text[at:]
        self._offset += at
        return [self._with_speaker(sentence) for sentence in (self._joined(found, final) if self._min else found)]

    @property
    def settled(self) -> int:
        """The position in the whole text before which no sentence ends that was not returned yet. Only a cut at white
        space may lie before it, if the sentence has no white space further on.
        """
        return self._offset + min(self._checked, self._most(0) // 2)

    def _most(self, at: int) -> int:
        """Return how many characters the longest sentence may have that begins at a position of the rest."""
        return fitting(self._text[at : at + self._max], self._max, self._wide)

    def _with_speaker(self, sentence: Sentence) -> Sentence:
        """Return the sentence, with the tag of its speaker at its beginning if an earlier sentence has that tag."""
        before, tags = self._speaker, _SPEAKER.findall(sentence.text)
        if tags:
            self._speaker = tags[-1]
        if not before or _SPEAKER.match(sentence.text):
            return sentence
        return replace(sentence, text=before + sentence.text)

    def _first(self, window: str, most: int, final: bool) -> tuple[int, Ending]:
        """Return the length of the first sentence of `window`, 0 while it is uncertain, and its ending. It has at
        most `most` characters.

        A full window decides regardless of the text after it, which bounds the decisions.
        """
        full = len(window) == most + _LOOKAHEAD
        while self._break is not None and self._checked < min(len(window), most):
            found = self._break.search(window, self._checked)
            if found is None or found.start() >= most:
                self._checked = len(window)
                break
            sure = _BLANK_LINE.search(found["space"]) is not None
            if not found["next"] and not sure:
                if not (full or final):
                    self._checked = found.start()
                    return 0, "sentence"
                sure = full and bool(found["space"]) and (found["stop"] is not None or _LINE_END.search(found["space"]))
            self._checked = max(found.end("space"), found.start() + 1)
            end = found.end("close")
            tag = _tag_around(window, end, full or final)
            ends = True if sure else self._ends(found, window, full or final)
            if tag is None or ends is None:
                self._checked = found.start()
                return 0, "sentence"
            if not tag and ends and end <= most and SPOKEN.search(window, 0, end):
                if _BLANK_LINE.search(found["space"]):
                    return end, "paragraph"
                return end, "clause" if found["clause"] else "sentence"
        if len(window) > most:
            return self._cut(window, most, full or final)
        return (len(window), "sentence") if final else (0, "sentence")

    @staticmethod
    def _cut(window: str, most: int, certain: bool) -> tuple[int, Ending]:
        """Return the position of the cut of a sentence that is too long; 0 while it is uncertain."""
        ends = [end for found in _CHARACTER.finditer(window[: most + 1]) if (end := found.end()) <= most]
        ends = ends or [_CHARACTER.match(window).end()]
        tags = [_tag_around(window, end, certain) for end in ends]
        if None in tags or (ends[-1] == len(window) and not certain):
            return 0, "cut"
        outside = [end for end, tag in zip(ends, tags, strict=True) if not tag]
        if not outside:
            end, tag = ends[0], tags[0]
            while tag:
                end, tag = tag, _tag_around(window, tag, certain)
            return (0 if tag is None else end), "cut"
        # A direction goes with what follows it.
        ends = [end for end in outside if _BEHIND_DIRECTION.search(window, 0, end) is None] or outside
        clauses = {found.end() for found in _CLAUSE_END.finditer(window, 0, most + 1)}
        for end in reversed(ends):
            if end in clauses and end >= most // 2:
                return end, "cut"
        return next((end for end in reversed(ends) if window[end : end + 1].isspace()), ends[-1]), "cut"

    def _ends(self, found: Any, window: str, certain: bool) -> bool | None:
        """Whether a mark, or the end of a line, ends a sentence; None while that depends on further text."""
        stop, space, following = found["stop"], found["space"], found["next"]
        if not following or _CONTINUES.match(following):
            return False
        lower = _LOWER.match(following) is not None
        if found["clause"]:
            return bool(space) or _WIDE_CLAUSE.search(found["clause"]) is not None
        if not stop:  # a line without a stop: the sentence ends, or the line is only wrapped
            return not lower or _LIST_MARK.match(found["open"]) is not None
        if not _NEEDS_SPACE.fullmatch(stop):
            return True
        if not space:
            before = window[max(0, found.start() - 1) : found.start()]
            return "…" not in stop and bool(_UNSPACED.match(before) and _UNSPACED.match(following))
        if _DOT.fullmatch(stop):
            return _full_stop_ends(window, found.start(), found.start("next"), lower, certain)
        if found["close"] or _DOTS.fullmatch(stop):  # "Stop!" she said ... and went on
            return not lower
        return True

    def _joined(self, sentences: list[Sentence], final: bool) -> list[Sentence]:
        """Join short sentences, and return those that no further sentence can change."""
        joined = self._unjoined
        for sentence in sentences:
            if joined and len(joined[-1].text) < self._min and self._may_join(joined[-1], sentence):
                joined[-1] = _join(joined[-1], sentence)
            else:
                joined.append(sentence)
        if final and len(joined) > 1 and len(joined[-1].text) < self._min and self._may_join(*joined[-2:]):
            joined[-2:] = [_join(*joined[-2:])]
        certain = len(joined) if final else max(0, len(joined) - 2)
        self._unjoined = joined[certain:]
        return joined[:certain]

    def _may_join(self, before: Sentence, sentence: Sentence) -> bool:
        return before.ending != "paragraph" and sentence.end - before.start <= self._max


def _join(before: Sentence, sentence: Sentence) -> Sentence:
    gap = " " if before.end < sentence.start else ""
    return replace(sentence, text=before.text + gap + sentence.text, start=before.start)


def _tag_around(window: str, end: int, certain: bool) -> int | None:
    """Return the end of the tag around a position, 0 if there is none, or None while a tag may still be completed."""
    around = 0
    for begin, tag in _TAGS.items():
        start = window.rfind(begin, 0, end - 1 + len(begin))
        found = tag.match(window, start, partial=not certain) if start >= 0 else None
        if found is not None and found.partial:
            return None
        if found is not None and found.end() > end:
            around = max(around, found.end())
    return around


def _full_stop_ends(window: str, stop: int, following: int, lower: bool, certain: bool) -> bool | None:
    """Whether a full stop ends a sentence; None while the word after it is incomplete and matters.

    Args:
        stop: its position.
        following: the position of the first letter after it, whose case is `lower`.
        certain: no further text matters.
    """
    before = window[:stop]
    found = _LAST_WORD.search(before, max(0, len(before) - 32))
    word = found[1] if found else ""
    key = word.casefold()
    if key not in ABBREVIATIONS:
        key = "str" if key.endswith("str") else _LAST_PART.search(key)[0]
    if key in BEFORE_NAME or (key not in ABBREVIATIONS and _LETTERS.fullmatch(word)):
        return False
    if _SMALL_NUMBER.fullmatch(word):  # the third of October in German, or the mark of a list
        first = _WORD_BEFORE.search(before, max(0, len(before) - 32))
        return not lower and first is not None and first[1].casefold() not in BEFORE_ORDINAL
    if key in ABBREVIATIONS:
        if lower and key not in BEFORE_DATE:
            return False
        after = _NEXT_WORD.match(window, following)
        if after.end() == len(window) and not certain:
            return None
        if not _ends_before(key, after[0]):
            return False
    if lower:  # a boundary only in a text whose sentences begin with small letters
        first = _CASED.search(before)
        return first is not None and _LOWER.match(first[0]) is not None
    return True


def _ends_before(abbreviation: str, word: str) -> bool:
    """Whether an abbreviation that is none of `BEFORE_NAME` may end the sentence before this word."""
    number = word[:1].isdecimal()
    return not (
        (abbreviation in MAYBE and word.casefold() not in STARTS)
        or (abbreviation in BEFORE_NUMBER and number)
        or (abbreviation in BEFORE_LABEL and _LABEL.fullmatch(word))
        or (abbreviation in BEFORE_DATE and (number or word.casefold() in DATES))
    )
