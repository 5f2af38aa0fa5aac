"""Dictionaries of pronunciations as the server keeps them for the gateways: what is written, and what is read again.

`about`, which lists have, too, is JSON: `About`. The content has lines of JSON: first a list of the versions, the
newest first, then the rules of each, one on a line, so that one version is read without the others.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError
from voice_clone_client import InvalidArgument, KeptDictionary
from voice_clone_text.dictionary import MOST_RULES, Dictionary, Rule

MOST_VERSIONS = 20
MOST_BYTES = 4 << 20
"""Of all versions; old ones go first."""


class About(BaseModel):
    """What is known of a dictionary without its rules."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    name: str
    description: str | None = None
    version: str = ""
    """The id of the newest one."""
    rules: int = 0
    """How many it has."""
    default: bool = False
    """Whether it is for speech that does not name it: that of the voice or in the language, if it has one."""
    voice: str | None = None
    language: str | None = None
    archived: float | None = None
    """When it left the list, in seconds since 1970."""


@dataclass(frozen=True)
class Kept:
    """A dictionary without its rules."""

    id: str
    owner: str | None
    generation: int
    created_at: float
    about: About

    @classmethod
    def of(cls, found: KeptDictionary) -> Kept | None:
        """The dictionary in an answer of the server; None if no gateway has written it."""
        try:
            about = About.model_validate_json(found.about)
        except ValidationError:
            return None
        return cls(found.id, found.owner, found.generation, found.created_at, about)


class Version(NamedTuple):
    """The rules of a dictionary at one time. They never change."""

    id: str
    number: int
    """Of its rules."""
    lines: bytes
    """A rule on each."""

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> Version:
        """A new version.

        Raises:
            InvalidArgument: there are too many rules, or one has no term or is too long.
        """
        try:
            Dictionary(rules)
        except ValueError as error:
            raise InvalidArgument(f"`rules`: {error}") from None
        lines = b"".join(json.dumps(_line(rule), ensure_ascii=False).encode() + b"\n" for rule in rules)
        return cls(f"{time.time_ns() // 10**6:012x}{secrets.token_hex(8)}", len(rules), lines)

    def rules(self) -> list[Rule]:
        """Its rules.

        Raises:
            InvalidArgument: no gateway has written them.
        """
        try:
            found = [json.loads(line) for line in self.lines.split(b"\n")[:-1]]
        except ValueError:
            raise _foreign() from None
        for values in found:
            kinds = [type(value) for value in values] if isinstance(values, list) else []
            if kinds not in (_KINDS[:4], _KINDS):
                raise _foreign()
        return [Rule(*values) for values in found]

    def dictionary(self) -> Dictionary:
        """What finds its terms. Raises: as `rules`."""
        try:
            return Dictionary(self.rules())
        except ValueError:
            raise _foreign() from None


_KINDS = [str, str, bool, bool, str, str]
"""Of the values of a rule; the last two are of a phoneme."""


def _foreign() -> InvalidArgument:
    return InvalidArgument("`pronunciations`: no gateway has written this dictionary; set its rules anew")


def packed(versions: Iterable[Version]) -> bytes:
    """The content: of these versions, the newest first, as many as there is room for.

    Raises:
        InvalidArgument: there is no room for the first one.
    """
    kept, size = list[Version](), 0
    for version in versions:
        size += len(version.lines) + 64
        if size > MOST_BYTES - 64 or len(kept) == MOST_VERSIONS:
            break
        kept.append(version)
    if not kept:
        raise InvalidArgument(f"`rules` have more than {MOST_BYTES >> 20} MiB; divide them among dictionaries")
    head = [(version.id, version.number, len(version.lines)) for version in kept]
    return b"".join([json.dumps(head).encode(), b"\n", *(version.lines for version in kept)])


def versions_of(found: KeptDictionary) -> list[Version]:
    """The versions in an answer of the server.

    Raises:
        InvalidArgument: no gateway has written it.
    """
    head, _, lines = (found.content or b"").partition(b"\n")
    try:
        versions, begin = list[Version](), 0
        for id, count, size in json.loads(head):
            versions.append(Version(id, min(count, MOST_RULES), lines[begin : begin + size]))
            begin += size
    except (ValueError, TypeError):
        versions = []
    if not versions:
        raise _foreign()
    return versions


def _line(rule: Rule) -> list[object]:
    options = [rule.term, rule.alias, rule.case_sensitive, rule.word_boundaries]
    return options if rule.phoneme is None else [*options, rule.phoneme, rule.alphabet]
