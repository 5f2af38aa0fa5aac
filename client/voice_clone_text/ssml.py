"""Speech Synthesis Markup (SSML): the part of the W3C's Recommendation 1.1 that has an effect here.

Pauses (`break`), structure (`p`, `s`), words in place of others (`sub`), voices, languages, tempo and volume
(`prosody`), places (`mark`), and letters one by one (`say-as`). Other elements speak their text, and are named in a
warning. Nothing is ever fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from xml.parsers import expat

from .pieces import Mark, Piece, Silence, Style, Words
from .prosody import LEAST_RATE, MOST_RATE, Pauses, gain_of, rate_of, seconds_of
from .tags import MarkupError, Part, TagScanner

MOST_DEPTH, MOST_ATTRIBUTES = 32, 64
NEUTRAL = "neutral"  # the style of the first clip of a voice

_SILENT = ("desc", "meta", "metadata", "title")
_PLAIN = ("lang", "token", "w")  # their text is spoken, and nothing else is expected
_NAMED = (
    *("audio", "backgroundaudio", "bookmark", "contour", "duration", "emphasis", "express-as", "lexicon", "lookup"),
    *("phoneme", "pitch", "range", "say-as", "silence", "viseme"),
)
"""What is named in a warning; anything else is `unknown marks`."""
_NO_CHANGE = ("", "0%", "+0%", "0.00%", "+0.00%", "+0Hz", "+0st", "0", "default", "medium")
_LETTERS = ("characters", "digits", "spell-out", "verbatim")
_BREAKS_OF = {"p": "\n\n", "s": "\n", "voice": " "}
"""What stands between an element and its neighbours, in the text that is spoken."""
_TOKEN = re.compile(r"(?P<words>[^ \t\r\n&]+(?: [^ \t\r\n&]+)*)|(?P<space>[ \t\r\n]+)|&(?P<entity>[^;]*);")
_RAW_TOKEN = re.compile(r"(?P<words>[^ \t\r\n]+(?: [^ \t\r\n]+)*)|(?P<space>[ \t\r\n]+)")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


class _Open(NamedTuple):
    """An element that is open, and the state before it."""

    name: str
    style: Style
    muted: bool


class SsmlReader:
    """The pieces of one document, which may come in increments.

    White space between words is one space; between sentences it is a line end, between paragraphs a blank line.

    Args:
        style: of words outside any element that changes it.
        relative: a percentage without a sign is relative, as with Azure: `20%` is a rate of 1.2, not of 0.2.
    """

    def __init__(self, style: Style, *, relative: bool = False) -> None:
        self._style, self._relative = style, relative
        self._scanner = TagScanner()
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._begin, self._end
        self._out: list[Piece] = []
        self._stack: list[_Open] = []
        self._muted = False  # the text is not spoken
        self._lead = ""  # white space before the document
        self._place = (0, 0)  # of the part that is read
        self._gap, self._gap_at = "", 0  # what stands before the next words
        self._spoken: Style | None = None  # of the words before; None behind a silence
        self._letters: list[Words] | None = None  # of an element whose text is spoken letter by letter
        self._pauses = Pauses()
        self._ignored = set[str]()

    @property
    def warnings(self) -> list[str]:
        """Sentences: what of the document has no effect."""
        named = f"SSML {', '.join(sorted(self._ignored))}: nothing here has this effect, so it is ignored"
        return [*self._pauses.warnings, *([named] if self._ignored else [])]

    def feed(self, text: str, final: bool = False) -> list[Piece]:
        """Add to the document; returns the pieces that are certain now.

        Raises:
            MarkupError: it is no SSML, or has too much of something.
        """
        self._out = []
        try:
            for part in self._scanner.feed(text, final):
                self._read(part)
            if final:
                self._parser.Parse("", True)
        except expat.ExpatError as error:
            problem = expat.ErrorString(error.code)
            raise MarkupError(f"{problem}; SSML begins with <speak>", error.lineno, error.offset + 1) from None
        except UnicodeEncodeError:
            raise self._error("a lone surrogate is no character") from None
        return self._out

    def _read(self, part: Part) -> None:
        if not self._stack and not self._lead.strip() and part.kind == "text" and not part.raw.strip("\ufeff \t\r\n"):
            self._lead += part.raw.strip("\ufeff")
            return
        self._place = (part.start, part.start + len(part.raw))
        if self._lead and not part.raw.startswith("<?xml"):
            self._parser.Parse(self._lead, False)
        self._lead = ""
        self._parser.Parse(part.raw, False)
        if part.kind == "text":
            self._read_text(part.raw, part.start, _TOKEN)
        elif part.kind == "cdata":
            self._read_text(part.raw[9:-3], part.start + 9, _RAW_TOKEN)

    def _read_text(self, raw: str, start: int, token: re.Pattern[str]) -> None:
        if self._muted or not self._stack:
            return
        for found in token.finditer(raw):
            at, end = start + found.start(), start + found.end()
            if found["words"]:
                self._write(found["words"], at, end)
            elif found["space"]:
                if self._letters is None:  # letters have spaces between them anyway
                    self._widen(" ", at)
            else:
                self._write(_character(found["entity"]), at, end)

    def _write(self, text: str, start: int, end: int, fixed: bool = False) -> None:
        words = Words(text, start, end, self._style, fixed)
        if self._letters is not None:
            self._letters.append(words)
            return
        if self._gap and self._spoken == self._style:
            self._out.append(Words(self._gap, min(self._gap_at, start), start, self._style))
        self._gap, self._spoken = "", self._style
        self._out.append(words)

    def _widen(self, gap: str, at: int) -> None:
        """At least this stands before the next words."""
        if not self._gap:
            self._gap_at = at
        self._gap = max(self._gap, gap, key=len)

    def _begin(self, element: str, attributes: Mapping[str, str]) -> None:
        if not self._stack and element != "speak":
            raise self._error("SSML begins with <speak>")
        if len(self._stack) == MOST_DEPTH:
            raise self._error(f"there are more than {MOST_DEPTH} elements within each other")
        if len(attributes) > MOST_ATTRIBUTES:
            raise self._error(f"an element has more than {MOST_ATTRIBUTES} attributes")
        self._stack.append(_Open(element, self._style, self._muted))
        if self._muted:
            return
        if language := attributes.get("xml:lang"):
            self._style = self._style._replace(language=language)
        self._widen_at(element)
        if element == "break":
            self._pause(attributes)
        elif element == "sub":
            if alias := " ".join(attributes.get("alias", "").split()):
                self._write(alias, *self._place, fixed=True)
            self._muted = True
        elif element == "prosody":
            self._change(attributes)
        elif element == "voice":
            name, clip = attributes.get("name"), attributes.get("style")
            before = None if name else self._style.clip  # another voice has styles of its own
            self._style = self._style._replace(voice=name or self._style.voice, clip=clip or before)
        elif element == "mstts:express-as" and (clip := attributes.get("style")):
            self._style = self._style._replace(clip=f"{clip},{NEUTRAL}")  # as Azure does where a voice lacks the style
        elif element == "mark":
            self._out.append(Mark(attributes.get("name", ""), self._place[0]))
        elif element == "say-as" and attributes.get("interpret-as") in _LETTERS:
            self._letters = []
        elif element in _SILENT:
            self._muted = True
        elif element not in ("speak", *_PLAIN, *_BREAKS_OF):
            self._ignore(element.rpartition(":")[2])

    def _end(self, element: str) -> None:
        opened = self._stack.pop()
        self._style, self._muted = opened.style, opened.muted
        if self._muted:
            return
        if element == "say-as" and self._letters is not None:
            self._spell(self._letters)
        self._widen_at(element)

    def _widen_at(self, element: str) -> None:
        if element in _BREAKS_OF:
            self._widen(_BREAKS_OF[element], self._place[0])

    def _spell(self, letters: list[Words]) -> None:
        self._letters = None
        text = " ".join("".join(words.text for words in letters).replace(" ", ""))
        if text:
            self._write(text, letters[0].start, letters[-1].end, fixed=True)

    def _pause(self, attributes: Mapping[str, str]) -> None:
        asked = self._value(seconds_of, attributes.get("time"), attributes.get("strength"))
        seconds = self._pauses.take(asked)
        self._widen(" ", self._place[0])
        if seconds > 0:
            self._spoken = None
            self._out.append(Silence(seconds, *self._place))

    def _change(self, attributes: Mapping[str, str]) -> None:
        for name, value in attributes.items():
            if name == "rate":
                rate = self._style.rate * self._value(rate_of, value, self._relative)
                self._style = self._style._replace(rate=round(rate, 4))
            elif name == "volume":
                gain = self._style.gain * self._value(gain_of, value, self._relative)
                self._style = self._style._replace(gain=round(gain, 4))
            elif name != "xml:lang" and value not in _NO_CHANGE:
                self._ignore(name)
        if not LEAST_RATE <= self._style.rate <= MOST_RATE:
            raise self._error(f"the rate is from {LEAST_RATE} to {MOST_RATE:g} in all")
        if self._style.gain > 4:
            raise self._error("the volume is at most +12 dB in all")

    def _value(self, parse: Callable[..., float], *values: object) -> float:
        """What a function makes of the values of an attribute."""
        try:
            return parse(*values)
        except ValueError as error:
            raise self._error(str(error)) from None

    def _ignore(self, name: str) -> None:
        self._ignored.add(name if name in _NAMED else "unknown marks")

    def _error(self, problem: str) -> MarkupError:
        return MarkupError(problem, self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1)


def _character(entity: str) -> str:
    """The character that an entity stands for; the parser has accepted it."""
    if entity.startswith("#x"):
        return chr(int(entity[2:], 16))
    return chr(int(entity[1:])) if entity.startswith("#") else _ENTITIES[entity]
