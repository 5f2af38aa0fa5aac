"""Tokens of a text while it is written: their ids equal those of the whole text, wherever it is cut.

Needs no torch. Only what no further text can change is final; the rest is kept as text. In this order:

1. An added token (`<think>`) is found in the text before all else, so an ending that may begin one is kept.
2. Composition (Unicode NFC, Annex 15) may change the last character that can begin one, and what follows it: they are
   kept.
3. The last pre-token may grow. Whitespace is split by what follows it, so whitespace before it is kept with it.
4. Of a last pre-token P some tokens are final nonetheless, which matters where words are not separated. In P and any
   continuation there is a last token that ends inside of P or with it, say at place s. The next one begins with P[s:],
   and the tokens before are those of P[:s], because byte-pair encoding merges nothing across a place that stays a
   border. So the tokens that all such P[:s] begin with are final; the places s are those where P[s:] begins an entry of
   the vocabulary.
"""

from __future__ import annotations

import functools
import json
import sys
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from voice_clone.errors import InvalidArgument, Unsupported, quoted

if TYPE_CHECKING:  # the library is imported where it is needed
    import tokenizers

_JAMO = frozenset(map(chr, [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]))  # vowels and final consonants of Hangul


@functools.cache
def _pairs() -> tuple[frozenset[str], frozenset[str]]:
    """The characters that can be the first, and the second one of a composition."""
    decomposed = (unicodedata.decomposition(chr(point)).split() for point in range(sys.maxunicode + 1))
    pairs = [parts for parts in decomposed if len(parts) == 2 and not parts[0].startswith("<")]
    firsts, seconds = (frozenset(chr(int(parts[place], 16)) for parts in pairs) for place in (0, 1))
    hangul = map(chr, [*range(0x1100, 0x1200), *range(0xAC00, 0xD7A4)])
    return firsts.union(hangul), _JAMO | seconds


@functools.lru_cache(maxsize=4096)
def starts_composition(character: str) -> bool:
    """Whether no composition joins a character to those before it, whatever they are.

    A character that Python's Unicode tables lack counts as one that might be composed.
    """
    if character < "\u0300":
        return True
    first = unicodedata.normalize("NFD", character)[0]
    combines = unicodedata.combining(character) or unicodedata.combining(first)
    unknown = unicodedata.category(character) == "Cn"
    return not (combines or unknown or character in _pairs()[1] or first in _pairs()[1])


def settled_length(text: str) -> int:
    """How many of the first characters of `text` are composed in the same way whatever follows it."""
    length = len(text)
    while length and not starts_composition(text[length - 1]):
        length -= 1
    if length == len(text) and text and not _is_composed_with_marks(text[-1]):
        return length
    return max(0, length - 1)


@functools.lru_cache(maxsize=4096)
def _is_composed_with_marks(character: str) -> bool:
    """Whether a mark that follows a character may become one with it."""
    return character in _pairs()[0] or unicodedata.decomposition(character) != ""


class Composed:
    """A text after composition, and where its places are in the text before.

    Args:
        text: before.
        compose: NFC.

    Attributes:
        text: after.
    """

    def __init__(self, text: str, compose: Callable[[str], str]) -> None:
        self.text = compose(text)
        self._after: list[int] | None = None  # ends of parts that are composed by themselves, after and before
        if self.text != text:
            parts = list(_parts(text))
            self._before = list(accumulate(map(len, parts), initial=0))
            self._after = list(accumulate((len(compose(part)) for part in parts), initial=0))

    def before(self, place: int) -> int:
        """The place before composition; the next possible one, for a place inside of a part."""
        return place if self._after is None else self._before[bisect_left(self._after, place)]


def _parts(text: str) -> Iterator[str]:
    begin = 0
    for place in range(1, len(text)):
        if starts_composition(text[place]):
            yield text[begin:place]
            begin = place
    yield text[begin:]


MAX_TAIL = 1 << 16  # characters of a word without an end

Ids = npt.NDArray[np.int32]


class Tail(NamedTuple):
    """The end of a text, whose tokens are not final.

    Attributes:
        text: it.
        begin: its place in the whole text.
        known: how many of its first tokens are final, and were given out.
        hidden: how many of the next final tokens are not given out.
    """

    text: str = ""
    begin: int = 0
    known: int = 0
    hidden: int = 0


class Appended(NamedTuple):
    """The tokens that a piece of text made final.

    Attributes:
        ids: int32 [n], tokens that are final now.
        ends: int32 [n], how many characters of the text each one and those before it stand for.
        tail: of the text now.
    """

    ids: Ids
    ends: Ids
    tail: Tail


@dataclass(frozen=True)
class Word:
    """A pre-token: its text, the letters that stand for its bytes, and where it is in the text before composition."""

    text: str
    mapped: str
    place: int
    end: int

    def ends(self, tokens: Sequence[Any]) -> list[int]:
        """The places up to which its first tokens go, in whole characters."""
        sizes = list(accumulate(len(token.value) for token in tokens))
        return [min(self.place + bisect_right(self._borders, size) - 1, self.end) for size in sizes]

    def droppable(self, known: Sequence[Any]) -> tuple[int, int]:
        """How many known tokens need not be kept as text, and how many characters they are.

        A run of letters that is cut between two of them is split as before: what is left goes on as one word. Not so
        behind an apostrophe, whose next letters may be a word of their own.
        """
        if self.text[0] != "'" and all(unicodedata.category(character)[0] == "L" for character in self.text[1:]):
            sizes = list(accumulate(len(token.value) for token in known))
            borders = {size: count for count, size in enumerate(self._borders[:-1])}
            for count in range(len(sizes), 0, -1):
                if sizes[count - 1] in borders:
                    return count, borders[sizes[count - 1]]
        return 0, 0

    @cached_property
    def _borders(self) -> list[int]:
        """Bytes before each character, and before the end."""
        return list(accumulate((len(character.encode()) for character in self.text), initial=0))


class AppendedTokens:
    """The rules of one tokenizer: NFC, a splitting pattern, byte-level BPE. It keeps no state of texts.

    Args:
        tokenizer: of the checkpoint.
        refused: the control tokens that no text may hold, by id.
        pattern: the tokenizer's splitting pattern, for which rule 3 holds.

    Raises:
        Unsupported: it is another kind of tokenizer.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, refused: Mapping[int, str], pattern: str) -> None:
        from tokenizers import pre_tokenizers

        _check(tokenizer, pattern)
        self._tokenizer = tokenizer
        self._refused = refused
        self._bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._entries = sorted(tokenizer.get_vocab(with_added_tokens=False))
        self._longest = max(map(len, self._entries))
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        self._added = sorted(added, key=len, reverse=True)
        self._first_letters = frozenset(content[0] for content in added)

    def append(self, tail: Tail, text: str, last: bool = False) -> Appended:
        """The tokens that `text` brings after a text with this tail; with `last`, all that are left.

        Raises:
            InvalidArgument: the text holds a control token, or a word that is far too long.
        """
        raw = tail.text + text
        if last:
            return self._given_out(tail, len(raw), *self._encode(raw), Tail("", tail.begin + len(raw)))
        begin, settled = self._last_part(raw)
        ids, ends = self._encode(raw[:begin]) if begin else ([], [])
        composed = Composed(raw[begin:settled], self._compose)
        words = [
            Word(composed.text[place:end], mapped, begin + composed.before(place), begin + composed.before(end))
            for mapped, (place, end) in self._tokenizer.pre_tokenizer.pre_tokenize_str(composed.text)
        ]
        held = _first_held(words)
        for word in words[:held]:
            tokens = self._tokenizer.model.tokenize(word.mapped)
            ids += [token.id for token in tokens]
            ends += word.ends(tokens)
        cut = words[held].place if words else begin
        rest = Tail(raw[cut:], tail.begin + cut, 0 if cut else tail.known)
        if len(rest.text) > MAX_TAIL:
            raise InvalidArgument(f"a word of the `text` has more than {MAX_TAIL} characters; separate words")
        if held + 1 != len(words) or words[held].text != raw[cut:settled] or words[held].text.isspace():
            return self._given_out(tail, cut, ids, ends, rest)
        word = words[held]
        certain = self._certain(word.mapped)
        ids += [token.id for token in certain[rest.known :]]
        ends += word.ends(certain)[rest.known :]
        known = max(rest.known, len(certain))
        dropped, characters = word.droppable(certain)
        rest = Tail(rest.text[characters:], rest.begin + characters, known - dropped)
        return self._given_out(tail, cut, ids, ends, rest)

    def _given_out(self, before: Tail, cut: int, ids: list[int], ends: list[int], tail: Tail) -> Appended:
        """Without the tokens that were given out before, or are not."""
        done = before.known if cut else 0
        hidden = min(before.hidden, max(0, len(ids) - done))
        ids, ends = ids[done + hidden :], ends[done + hidden :]
        tail = Tail(tail.text, tail.begin, tail.known, before.hidden - hidden)
        return Appended(np.array(ids, np.int32), np.array(ends, np.int32) + np.int32(before.begin), tail)

    def _compose(self, text: str) -> str:
        composed: str = self._tokenizer.normalizer.normalize_str(text)
        return composed

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        """Ids and ends of tokens that are final."""
        encoding = self._tokenizer.encode(text)
        for index in encoding.ids:
            if index in self._refused:
                raise InvalidArgument(f"the `text` holds {quoted(self._refused[index])}, a control token; remove it")
        return encoding.ids, [end for _, end in encoding.offsets]

    def _last_part(self, raw: str) -> tuple[int, int]:
        """Where the text behind the last added token begins, and up to where its composition is final."""
        begin = place = 0
        while place < len(raw):
            if raw[place] in self._first_letters:
                if any(len(raw) - place < len(token) and token.startswith(raw[place:]) for token in self._added):
                    break
                token = next((token for token in self._added if raw.startswith(token, place)), None)
                if token is not None:
                    begin = place = place + len(token)
                    continue
            place += 1
        if place < len(raw) and starts_composition(raw[place]):
            return begin, place
        return begin, begin + settled_length(raw[begin:place])

    def _certain(self, mapped: str) -> list[Any]:
        """The final tokens of a word that may go on (rule 4)."""
        common: list[Any] | None = None
        for place in range(max(0, len(mapped) - self._longest), len(mapped) + 1):
            if not self._begins_entry(mapped[place:]):
                continue
            tokens = self._tokenizer.model.tokenize(mapped[:place]) if place else []
            common = tokens if common is None else _common(common, tokens)
            if not common:
                break
        return common or []

    def _begins_entry(self, ending: str) -> bool:
        place = bisect_left(self._entries, ending)
        return place < len(self._entries) and self._entries[place].startswith(ending)


def _first_held(words: Sequence[Word]) -> int:
    """The first of the pre-tokens that are not final (rule 3)."""
    held = max(0, len(words) - 1)
    if words and words[held].text.isspace():
        while held and words[held - 1].text.isspace():
            held -= 1
    while held and not starts_composition(words[held].text[0]):
        held -= 1
    return held


def _common(these: list[Any], those: list[Any]) -> list[Any]:
    """The tokens with which both begin."""
    pairs = zip(these, those, strict=False)
    return [token for token, _ in takewhile(lambda pair: pair[0].id == pair[1].id, pairs)]


def _check(tokenizer: tokenizers.Tokenizer, pattern: str) -> None:
    from tokenizers import models, normalizers, pre_tokenizers

    model, normalizer, splitter = tokenizer.model, tokenizer.normalizer, tokenizer.pre_tokenizer
    byte_level = isinstance(model, models.BPE) and not (
        model.dropout or model.ignore_merges or model.continuing_subword_prefix or model.end_of_word_suffix
    )
    parts = [] if splitter is None else json.loads(splitter.__getstate__()).get("pretokenizers", [])
    known = (
        len(parts) == 2
        and (parts[0]["type"], parts[0].get("pattern")) == ("Split", {"Regex": pattern})
        and (parts[0]["behavior"], parts[0]["invert"]) == ("Isolated", False)
        and (parts[1]["type"], parts[1]["add_prefix_space"], parts[1]["use_regex"]) == ("ByteLevel", False, False)
    )
    letters = {letter for letter, _ in tokenizer.get_vocab().items() if len(letter) == 1}
    whole = letters.issuperset(pre_tokenizers.ByteLevel.alphabet())
    plain = not any(
        token.normalized or token.lstrip or token.rstrip or token.single_word
        for token in tokenizer.get_added_tokens_decoder().values()
    )
    if not (byte_level and isinstance(normalizer, normalizers.NFC) and known and whole and plain):
        raise Unsupported("this checkpoint's tokenizer does not take text piece by piece; send the whole text")
