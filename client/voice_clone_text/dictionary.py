"""A dictionary of pronunciations: what is spoken in place of words that a model reads wrongly.

The longest term at the first place wins, in one pass: an alias is not looked up again. Terms are plain text, found by
an automaton, so no term and no text is slow.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import regex

from .held import Change, Stage
from .pieces import Style

MOST_RULES, MOST_TERM, MOST_ALIAS = 10_000, 200, 500
"""Rules of a dictionary, and characters of what one has."""

_MOST_TRIED = 16  # terms that begin at one place
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}]")
_MARK = regex.compile(r"\p{M}")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}ー々]")
_CLUSTER = regex.compile(r"\X")
_LAST_CLUSTER = regex.compile(r"\X\Z")


@dataclass(frozen=True)
class Rule:
    """A term, and what is spoken in its place."""

    term: str
    alias: str
    case_sensitive: bool = True
    word_boundaries: bool = True
    """Whether no letter, digit or mark may be beside it. Between letters of scripts without spaces it never matters."""
    phoneme: str | None = None
    """In place of an alias. Nothing speaks it: the rule is kept, and has no effect."""
    alphabet: str = "ipa"
    """Of the phoneme."""


class Dictionary:
    """The rules of a text; of two with the same term the first that fits has an effect.

    Attributes:
        size: how many rules there are.
        phonemes: how many rules have no effect, because they have a phoneme.

    Raises:
        ValueError: there are too many rules, or one is too long or has no term.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        from ahocorasick_rs import AhoCorasick, MatchKind  # it is needed here alone

        if len(rules) > MOST_RULES:
            raise ValueError(f"a dictionary has at most {MOST_RULES} rules, not {len(rules)}")
        self.size, self.phonemes = len(rules), 0
        self._rules: dict[str, list[tuple[str, Rule]]] = {}  # by their folded terms, with those as they are compared
        for rule in rules:
            said = rule.alias if rule.phoneme is None else rule.phoneme
            if not rule.term.strip() or len(rule.term) > MOST_TERM or len(said) > MOST_ALIAS:
                raise ValueError(
                    f"a rule has a term of 1 to {MOST_TERM} characters, and an alias of at most {MOST_ALIAS}; "
                    f"{rule.term[:40]!r} has not"
                )
            if rule.phoneme is not None:
                self.phonemes += 1
                continue
            self._rules.setdefault(_folded(rule.term)[0], []).append((_composed(rule.term), rule))
        self._terms = sorted(self._rules)
        self._lengths = sorted({len(term) for term in self._terms}, reverse=True)
        inside = (term for term, rules in self._rules.items() if any(not rule.word_boundaries for _, rule in rules))
        self._inside = sorted({len(term) for term in inside}, reverse=True)  # of terms that fit inside words
        self._most = max(self._lengths, default=0)
        self._automaton = AhoCorasick(self._terms, matchkind=MatchKind.LeftmostLongest, store_patterns=False)

    def find(self, text: str, before: str = "", final: bool = True) -> tuple[list[Change], int]:
        """The changes in a text, and up to where no further text can change them.

        Args:
            before: the character before the text.
            final: nothing follows it.
        """
        folded, places = _folded(text)
        certain = len(folded) if final else self._certain(folded, text, places)
        changes = []
        for begin, end, rule in self._matches(text, folded, places, before):
            if begin >= certain:
                break
            changes.append(Change(places[begin], places[end], rule.alias))
            certain = max(certain, end)
        return changes, places[certain]

    def _certain(self, folded: str, text: str, places: Sequence[int]) -> int:
        """The first place at which a term may begin that is not all there yet."""
        last = _LAST_CLUSTER.search(text, max(0, len(text) - 64))
        end = bisect_left(places, last.start() if last else 0)  # what follows may change the last character
        for begin in range(max(0, end - self._most), end):
            suffix = folded[begin:end]
            near = bisect_left(self._terms, suffix)
            if near < len(self._terms) and self._terms[near].startswith(suffix):
                return begin
        return end

    def _matches(self, text: str, folded: str, places: Sequence[int], before: str) -> Iterator[tuple[int, int, Rule]]:
        """All matches from left to right, by their places in the folded text.

        A candidate that does not fit is rare. Then the search begins again behind its first character, in a window:
        in all of the text that could take long.
        """
        at, window = 0, max(1024, 4 * self._most)
        while at < len(folded):
            whole = at + window >= len(folded)
            following = len(folded) if whole else at + window - self._most
            for _, begin, end in self._automaton.find_matches_as_indexes(folded[at : at + window]):
                begin, end = at + begin, at + end
                if begin >= following:
                    break
                found = self._fitting(text, folded, places, before, begin, end)
                if found is not None:
                    yield begin, found[0], found[1]
                if found is None or found[0] != end:
                    following = self._behind(folded, begin) if found is None else found[0]
                    break
                following = max(following, end)
            at = following

    def _behind(self, folded: str, begin: int) -> int:
        """The next place at which a term may fit where none fits here."""
        following = begin + 1
        while not self._inside and _joined(folded[following - 1], folded[following : following + 1]):
            following += 1
        return following

    def _fitting(
        self, text: str, folded: str, places: Sequence[int], before: str, begin: int, longest: int
    ) -> tuple[int, Rule] | None:
        """The end and the rule of the longest term that begins at a place and fits there."""
        left = text[places[begin] - 1] if places[begin] else before
        inside = _joined(left, text[places[begin]])
        tried = 0
        for length in self._inside if inside else self._lengths:
            end = begin + length
            if end > longest or folded[begin:end] not in self._rules:
                continue
            tried += 1
            if tried > _MOST_TRIED:
                return None
            for term, rule in self._rules[folded[begin:end]]:
                found = text[places[begin] : places[end]]
                if rule.case_sensitive and _composed(found) != term:
                    continue
                right = text[places[end] : places[end] + 1]
                if rule.word_boundaries and (inside or _joined(found[-1], right)):
                    continue
                return end, rule
        return None


class Scoped(NamedTuple):
    """A dictionary, and for which words it is."""

    dictionary: Dictionary
    applies: Callable[[Style], bool] = lambda style: True


class DictionaryStage(Stage):
    """Replaces the terms of a dictionary."""

    def __init__(self, scoped: Scoped) -> None:
        super().__init__()
        self._dictionary, self._applies = scoped

    def changes(self, text: str, style: Style, final: bool) -> tuple[list[Change], int]:
        if not self._applies(style):
            return [], len(text)
        return self._dictionary.find(text, self.before, final)


def _joined(left: str, right: str) -> bool:
    if not left or not right:
        return False
    if _MARK.match(right):
        return True
    return bool(_WORD.match(left) and _WORD.match(right)) and not (_UNSPACED.match(left) or _UNSPACED.match(right))


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _folded(text: str) -> tuple[str, Sequence[int]]:
    """A text without case and with composed characters; where each of its characters is in the text, and the end.

    A character that would become several stays as it is.
    """
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return _casefold(text), range(len(text) + 1)
    out, places = [], list[int]()
    for found in _CLUSTER.finditer(text):
        composed = _composed(found[0])
        single = len(composed) == 1
        out.append(composed if single else found[0])
        places += [found.start()] if single else range(found.start(), found.end())
    return _casefold("".join(out)), [*places, len(text)]


def _casefold(text: str) -> str:
    folded = text.casefold()
    if len(folded) == len(text):  # folding only lengthens, so each character has become one
        return folded
    return "".join(single if len(single := character.casefold()) == 1 else character for character in text)
