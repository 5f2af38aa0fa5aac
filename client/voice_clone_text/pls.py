"""The W3C's files of pronunciations (Pronunciation Lexicon Specification 1.0), to rules and back.

A `lexeme` has one `grapheme` or several, each the term of a rule. Of its pronunciations the preferred alias counts,
else the first one; where it has only phonemes, the rule has one. Whether case and word boundaries matter is in
attributes of our own, which other programs skip. Nothing is ever fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from .dictionary import MOST_RULES, Rule
from .ssml import MOST_ATTRIBUTES, MOST_DEPTH
from .tags import MarkupError, TagScanner

MOST_TAGS = 100_000

_PLS = "http://www.w3.org/2005/01/pronunciation-lexicon"
_OWN = "urn:voice-clone:pronunciations"
_LANGUAGE = "http://www.w3.org/XML/1998/namespace lang"
_OPTIONS = ("case_sensitive", "word_boundaries")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Lexicon(NamedTuple):
    rules: list[Rule]
    language: str | None


class _Said(NamedTuple):
    text: str
    preferred: bool
    alphabet: str | None
    """None: it is an alias."""


def read(data: str | bytes) -> Lexicon:
    """The rules of a file.

    Raises:
        MarkupError: it is no such file, or has too much of something.
    """
    if isinstance(data, bytes):
        data = _decoded(data)
    reader = _Reader()
    try:
        for part in TagScanner(MOST_TAGS).feed(data.lstrip("\ufeff \t\r\n"), final=True):
            reader.parser.Parse(part.raw, False)
        reader.parser.Parse("", True)
    except expat.ExpatError as error:
        problem = expat.ErrorString(error.code)
        raise MarkupError(f"{problem}; PLS begins with <lexicon>", error.lineno, error.offset + 1) from None
    except UnicodeEncodeError:
        raise reader.error("a lone surrogate is no character") from None
    return Lexicon(reader.rules, reader.language)


def write(rules: Iterable[Rule], language: str | None = None) -> str:
    """The file of some rules. Reading it gives them again, with single spaces in place of other white space."""
    about = f'xmlns="{_PLS}" xmlns:own="{_OWN}" alphabet="ipa" xml:lang={_quoted(language or "und")}'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<lexicon version="1.0" {about}>']
    for rule in rules:
        options = "".join(f' own:{name}="false"' for name in _OPTIONS if not getattr(rule, name))
        if rule.phoneme is None:
            said = f"<alias>{_escaped(rule.alias)}</alias>"
        else:
            said = f"<phoneme alphabet={_quoted(rule.alphabet)}>{_escaped(rule.phoneme)}</phoneme>"
        lines.append(f"  <lexeme{options}><grapheme>{_escaped(rule.term)}</grapheme>{said}</lexeme>")
    return "\n".join([*lines, "</lexicon>", ""])


class _Reader:
    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.language: str | None = None
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.StartElementHandler, self.parser.EndElementHandler = self._begin, self._end
        self.parser.CharacterDataHandler = lambda text: self._text.append(text)
        self._path: list[str] = []
        self._alphabet = "ipa"
        self._attributes: Mapping[str, str] = {}  # of the latest element
        self._options = True, True  # of the lexeme
        self._terms: list[str] = []
        self._said: list[_Said] = []
        self._text: list[str] = []

    def error(self, problem: str) -> MarkupError:
        return MarkupError(problem, self.parser.CurrentLineNumber, self.parser.CurrentColumnNumber + 1)

    def _begin(self, element: str, attributes: Mapping[str, str]) -> None:
        namespace, _, name = element.rpartition(" ")
        self._path.append(name if namespace in ("", _PLS) else element)
        if self._path[0] != "lexicon":
            raise self.error("PLS begins with <lexicon>")
        if len(self._path) > MOST_DEPTH:
            raise self.error(f"there are more than {MOST_DEPTH} elements within each other")
        if len(attributes) > MOST_ATTRIBUTES:
            raise self.error(f"an element has more than {MOST_ATTRIBUTES} attributes")
        self._attributes, self._text = attributes, []
        if len(self._path) == 1:
            self.language = attributes.get(_LANGUAGE)
            self._alphabet = attributes.get("alphabet", self._alphabet)
        elif self._path[1:] == ["lexeme"]:
            cased, bounded = (attributes.get(f"{_OWN} {name}") != "false" for name in _OPTIONS)
            self._options = cased, bounded
            self._terms, self._said = [], []

    def _end(self, element: str) -> None:
        *within, name = self._path
        if within == ["lexicon", "lexeme"]:
            text = " ".join("".join(self._text).split())
            if name == "grapheme" and text:
                self._terms.append(text)
            elif name in ("alias", "phoneme"):
                alphabet = self._attributes.get("alphabet", self._alphabet) if name == "phoneme" else None
                self._said.append(_Said(text, self._attributes.get("prefer") == "true", alphabet))
        elif within == ["lexicon"] and name == "lexeme":
            self._add()
        self._path.pop()

    def _add(self) -> None:
        if not self._terms or not self._said:
            raise self.error("a <lexeme> has a <grapheme>, and an <alias> or a <phoneme>")
        # An alias before a phoneme, which nothing here speaks; a preferred one before the others.
        text, _, alphabet = min(self._said, key=lambda said: (said.alphabet is not None, not said.preferred))
        alias, phoneme = (text, None) if alphabet is None else ("", text)
        self.rules += [Rule(term, alias, *self._options, phoneme, alphabet or "ipa") for term in self._terms]
        if len(self.rules) > MOST_RULES:
            raise self.error(f"a dictionary has at most {MOST_RULES} rules")


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        raise MarkupError("the file is no UTF-8 and no UTF-16", 1, 1) from None


def _escaped(text: str) -> str:
    return escape(_NO_XML.sub("", text))


def _quoted(text: str) -> str:
    return quoteattr(_NO_XML.sub("", text))
