"""From a text to what is spoken: the pieces of a text that is still being written, and the plan of a whole one.

    plan(text, Settings()).items

A whole text is one increment, so both are the same: the pieces of a text, joined, do not depend on its increments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from .dictionary import DictionaryStage, Scoped
from .held import Stage
from .numbers import Normalize, NumberStage
from .pieces import Joiner, Piece, Plan, Silence, Style, Words
from .prosody import Pauses, seconds_of
from .ssml import SsmlReader
from .tags import is_ssml

InputType = Literal["auto", "text", "ssml"]

DEFAULT_STYLE = Style()
_PAUSE = re.compile(
    r"\[pause:(?P<inline>[\d.]{1,8}m?s)\]"
    r"|<break\s{1,8}time\s{0,2}=\s{0,2}[\"'](?P<tag>[\d.]{1,8}m?s)[\"']\s{0,8}/?>"
)
_CUT_PAUSE = re.compile(
    r"\[(?:p(?:a(?:u(?:s(?:e(?::[\d.]{0,8}m?s?)?)?)?)?)?)?\Z"
    r"|<(?:b(?:r(?:e(?:a(?:k(?:\s[^<>]{0,40})?)?)?)?)?)?\Z"
)


@dataclass(frozen=True)
class Settings:
    """How a text is read."""

    input_type: InputType = "auto"
    """Auto: SSML if it begins with `<speak`, else text. A `<` in text is a character as any other."""
    _: KW_ONLY
    inline_pauses: bool = False
    """Whether `[pause:500ms]` in a text is a pause."""
    tag_pauses: bool = False
    """Whether `<break time="500ms"/>` in a text that is no SSML is a pause, as with ElevenLabs and Cartesia."""
    style: Style = DEFAULT_STYLE
    """Of words that the text gives no other one."""
    relative_rates: bool = False
    """See `relative` of `SsmlReader`."""
    dictionaries: Sequence[Scoped] = ()
    """What is spoken in place of some words. A dictionary sees neither what SSML replaces, nor what one before it
    does."""
    normalize: Normalize = "off"
    """Whether numbers, dates, money, units, addresses and a few abbreviations become words; `numbers`: only what has a
    digit. It needs a language, and the extra `text` of the package."""


class Planner:
    """The pieces of one text, which may come in increments."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._begun = ""  # of a text whose kind is not certain
        self._reader: SsmlReader | TextReader | None = None
        self._stages: list[Stage] = [DictionaryStage(each) for each in settings.dictionaries]
        if settings.normalize != "off":
            self._stages.append(NumberStage(settings.normalize))

    def feed(self, text: str, final: bool = False) -> list[Piece]:
        """Add to the text; returns the pieces that are certain now.

        Raises:
            MarkupError: it is SSML, and invalid. What was returned before may have been spoken.
        """
        if self._reader is None:
            text = self._begun + text
            self._reader = self._choose(text, final)
            self._begun = text if self._reader is None else ""
            if self._reader is None:
                return []
        pieces = self._reader.feed(text, final)
        for stage in self._stages:
            pieces = stage.feed(pieces, final)
        return pieces

    def flush(self) -> list[Piece]:
        """The pieces of all that was written, as if it ended here; more may come. Of SSML, a tag that has begun waits.

        Raises:
            MarkupError: as `feed`.
        """
        pieces = list[Piece]()
        if self._begun:
            text, self._begun = self._begun, ""
            self._reader = self._choose(text, final=True)
            pieces += self._reader.feed(text) if self._reader else []
        if isinstance(self._reader, TextReader):
            pieces += self._reader.flush()
        for stage in self._stages:
            pieces = stage.feed(pieces, final=True)
        return pieces

    @property
    def warnings(self) -> list[str]:
        """Sentences: what has no effect, or another one than was asked for."""
        read = [] if self._reader is None else self._reader.warnings
        return [*read, *(text for stage in self._stages for text in stage.warnings)]

    def _choose(self, text: str, final: bool) -> SsmlReader | TextReader | None:
        kind, style = self._settings.input_type, self._settings.style
        ssml = is_ssml(text, final) if kind == "auto" else kind == "ssml"
        if ssml is None:
            return None
        if ssml:
            return SsmlReader(style, relative=self._settings.relative_rates)
        kinds = {"inline": self._settings.inline_pauses, "tag": self._settings.tag_pauses}
        return TextReader(style, [kind for kind, asked in kinds.items() if asked])


class TextReader:
    """The pieces of a text that is no SSML.

    Args:
        style: of all of it.
        kinds: of the pauses that it may have: `inline`, `tag`.
    """

    def __init__(self, style: Style, kinds: Sequence[str]) -> None:
        self._style, self._kinds = style, kinds
        self._pauses = Pauses()
        self._rest, self._at = "", 0

    @property
    def warnings(self) -> list[str]:
        return self._pauses.warnings

    def feed(self, text: str, final: bool = False) -> list[Piece]:
        text, self._rest, out = self._rest + text, "", list[Piece]()
        begin = 0
        for found in _PAUSE.finditer(text) if self._kinds else ():
            kind = str(found.lastgroup)
            if kind not in self._kinds:
                continue
            try:
                seconds = seconds_of(found[kind])
            except ValueError:
                continue  # it is a text as any other
            out += self._words(text[begin : found.start()])
            place = (self._at, self._at + len(found[0]))
            self._at, begin = place[1], found.end()
            if (seconds := self._pauses.take(seconds)) > 0:
                out.append(Silence(seconds, *place))
        end = len(text)
        if self._kinds and not final and (cut := _CUT_PAUSE.search(text, max(begin, end - 64))):
            end = cut.start()
        self._rest = text[end:]
        return [*out, *self._words(text[begin:end])]

    def flush(self) -> list[Words]:
        text, self._rest = self._rest, ""
        return self._words(text)

    def _words(self, text: str) -> list[Words]:
        begin, self._at = self._at, self._at + len(text)
        return [Words(text, begin, self._at, self._style)] if text else []


def plan(text: str, settings: Settings | None = None) -> Plan:
    """The plan of a whole text.

    Raises:
        MarkupError: it is SSML, and invalid.
    """
    planner, joiner = Planner(settings or Settings()), Joiner()
    joiner.add(planner.feed(text, final=True))
    return joiner.plan(planner.warnings)
