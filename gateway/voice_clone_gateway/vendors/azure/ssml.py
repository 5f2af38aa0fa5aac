"""Their text with marks, SSML: what of it has an effect here, which is voice, language, rate and the words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.parsers import expat

from voice_clone_client.errors import quoted

from ...http.errors import HTTPFailure
from ..orders import LANGUAGES, language_of
from ..session import refused

_RATES = {"x-slow": 0.5, "slow": 0.64, "medium": 1.0, "default": 1.0, "fast": 1.55, "x-fast": 2.0}
_PERCENT, _FACTOR = re.compile(r"([+-]?\d{1,3}(?:\.\d{1,4})?)%"), re.compile(r"\d(?:\.\d{1,4})?")
_PLAIN = ("speak", "voice", "lang", "p", "s", "sub", "prosody")
"""Elements without an effect of their own, or with one that is here, too."""
_NO_EFFECT = (
    *("audio", "backgroundaudio", "bookmark", "break", "contour", "emphasis", "express-as", "lexicon", "phoneme"),
    *("pitch", "range", "say-as", "silence", "viseme", "volume"),
)
"""Elements and attributes that are named in a warning; others are just that."""
_MOST_BYTES, _MOST_ELEMENTS = 1 << 20, 10_000  # it is read at once
_NO_CHANGE = ("", "0%", "+0%", "0.00%", "+0.00%", "+0Hz", "+0st", "0", "default", "medium")


class Ssml:
    """A document.

    Raises:
        HTTPFailure: it is no XML, is too large, has a document type, or wants several voices.
    """

    def __init__(self, document: bytes) -> None:
        if len(document) > _MOST_BYTES:
            raise HTTPFailure(413, f"SSML may have {_MOST_BYTES} bytes; divide the text", "body_too_large")
        self._elements = 0
        self.voice: str | None = None
        self.language: str | None = None
        self.speed: float | None = None
        self.ignored = set[str]()
        """What has no effect here."""
        self._words = list[str]()
        self._replaced = 0  # elements that are open in one whose alias is spoken
        parser = expat.ParserCreate()
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._write
        parser.StartDoctypeDeclHandler = _refuse_type  # entities could be large, or of files
        try:
            parser.Parse(document, True)
        except (expat.ExpatError, LookupError, ValueError) as error:  # the others: of an unknown encoding
            raise HTTPFailure(400, f"the body is no SSML: {error}; it begins with <speak>", "invalid_ssml") from None

    @property
    def text(self) -> str:
        """The words."""
        return " ".join("".join(self._words).split())

    def _start(self, element: str, attributes: Mapping[str, str]) -> None:
        self._elements += 1
        if self._elements > _MOST_ELEMENTS:
            raise HTTPFailure(400, f"SSML may have {_MOST_ELEMENTS} elements; divide the text", "invalid_ssml")
        name = element.rpartition(":")[2]
        self._replaced += bool(self._replaced)
        if name == "voice":
            self._choose(attributes.get("name"))
        elif name == "speak":
            code = language_of(attributes.get("xml:lang"))
            self.language = code if code in LANGUAGES else None  # apps send one that is not the text's
        elif name == "prosody":
            self._change(attributes)
        elif name == "sub" and not self._replaced:
            self._write(attributes.get("alias", ""))
            self._replaced = 1
        if name not in _PLAIN:
            self._ignore(name)
        if name in ("break", "p", "s"):
            self._write(" ")

    def _end(self, element: str) -> None:
        self._replaced -= bool(self._replaced)
        if element in ("p", "s"):
            self._write(" ")

    def _write(self, text: str) -> None:
        if not self._replaced:
            self._words.append(text)

    def _choose(self, voice: str | None) -> None:
        if self.voice is not None and voice != self.voice:
            raise refused("voice", "one voice speaks in a request here; send one request for each")
        self.voice = voice

    def _change(self, attributes: Mapping[str, str]) -> None:
        speed = _speed_of(attributes.get("rate", ""))
        if speed is not None and self.speed not in (None, speed):
            self.ignored.add("rate")  # a part of the text has another one
        self.speed = self.speed or speed
        for name, value in attributes.items():
            if name != "rate" and value not in _NO_CHANGE:
                self._ignore(name)

    def _ignore(self, name: str) -> None:
        self.ignored.add(name if name in _NO_EFFECT else "unknown marks")


def _speed_of(rate: str) -> float | None:
    """Raises HTTPFailure: it is no rate."""
    if not rate:
        return None
    if rate in _RATES:
        return _RATES[rate]
    if found := _PERCENT.fullmatch(rate):
        return round(1 + float(found[1]) / 100, 4)
    if _FACTOR.fullmatch(rate):
        return float(rate)
    raise refused("rate", f"{quoted(rate)} is none; it is like 1.2, +20% or fast")


def _refuse_type(*_: object) -> None:
    raise refused("DOCTYPE", "SSML has none here; leave it out")
