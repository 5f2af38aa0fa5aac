"""Byte-level BPE (Sennrich et al. 2016) over tables in a mapped file; its ids equal those of the library `tokenizers`.

The library reads a vocabulary of 150,000 tokens in 0.2 s or more, and keeps 40 MB of it in each process. So the first
process that reads one writes tables for the next, which touches the few pages that its texts need. The library is read
where a text is long, because it is ten times as fast, and for what is no byte-level BPE. A short text in ASCII does
without the library altogether.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voice_clone.native.cache_folder import installed, writable_folder
from voice_clone.native.packed_file import NOWHERE, PackedFile

if TYPE_CHECKING:  # the library is imported where it is needed
    import tokenizers

WORTH = 1 << 20  # bytes of the files of a vocabulary; the library reads a smaller one as fast
MOST = 64 << 20  # bytes of all tables that are kept
LONG = 1000  # characters
_FORM = 2  # of the tables
_LOW = (1 << 32) - 1

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen2's tokenizer cuts a text before it looks for tokens; Qwen3's is the same."""

QWEN2_ASCII_SPLIT = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    re.ASCII,
)
"""The words into which `QWEN2_SPLIT` cuts a text in ASCII."""


class Added(NamedTuple):
    """An added token; `special`: it is no text."""

    content: str
    special: bool


class Vocabulary:
    """The tokenizer of a checkpoint.

    Args:
        load: reads it by the library.
        tables: of `tables_of`; none: the library encodes all texts.

    Attributes:
        added: the added tokens, by id.
        size: one more than the highest id.
    """

    def __init__(self, load: Callable[[], tokenizers.Tokenizer], tables: Sequence[NDArray[Any]] = ()) -> None:
        self._load = load
        self._words: _Words | None = None
        if tables:
            begins, seconds, ranked, letters, text = tables
            told = json.loads(text.tobytes())
            self.size: int = told["size"]
            self.added = {index: Added(*rest) for index, *rest in told["added"]}
            ids = {token.content: index for index, token in self.added.items()}
            self._words = _Words(begins, seconds, ranked, letters, ids, told["shell"], told["qwen2"])
        else:
            self.size, self.added = _size(self.library), _added(self.library)

    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, read when it is first used."""
        return self._load()

    def ids(self, text: str) -> list[int]:
        """The ids of a text, in which added tokens may stand."""
        if self._words is not None and len(text) <= LONG and "library" not in self.__dict__:
            return self._words.ids(text)
        found: list[int] = self.library.encode(text, add_special_tokens=False).ids
        return found


def open_vocabulary(folder: Path, names: Sequence[str], load: Callable[[], tokenizers.Tokenizer]) -> Vocabulary:
    """The tokenizer in the files `names` of a folder, as the library's `load` makes it of them.

    Raises:
        CheckpointError: as of `load`.
    """
    files: list[tuple[Any, ...]] = [(name, *_state(folder / name)) for name in names]
    kept = NOWHERE
    if sum(state[1] for state in files) >= WORTH:
        key = {"form": _FORM, "library": installed("tokenizers-"), "folder": str(folder), "files": files}
        kept = PackedFile(writable_folder("vocabularies"), key, MOST, any_size=True)
        if kept.found:
            return Vocabulary(load, kept.part("tables")(list))
    made = load()
    kept.part("tables")(lambda: tables_of(made))
    kept.keep()
    return Vocabulary(lambda: made)


def _state(path: Path) -> tuple[int, ...]:
    """What of a file changes when it is written, the size first; zero if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return (0,)
    return found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def tables_of(tokenizer: tokenizers.Tokenizer) -> list[NDArray[Any]]:
    """What `Vocabulary` needs of a byte-level BPE, none if it is another kind.

    Of the pairs of ids that merge, sorted: where those of each first id begin, int32 [ids + 1], and the second ids,
    int32 [n]; their ranks and what they become, int64 [n], the rank in the high half; the ids of the letters that stand
    for bytes, int32 [256]; JSON, uint8: the added tokens, the library's tokenizer without its vocabulary, and whether
    that composes and splits a text as Qwen2's.
    """
    if not _is_byte_level(tokenizer):
        return []
    whole = json.loads(tokenizer.to_str())
    vocabulary: dict[str, int] = whole["model"]["vocab"]
    merges = {
        vocabulary[left] << 32 | vocabulary[right]: rank << 32 | vocabulary[left + right]
        for rank, (left, right) in enumerate(whole["model"]["merges"])
    }
    pairs = sorted(merges)
    firsts, seconds = np.divmod(np.array(pairs, np.int64), 1 << 32)
    begins = np.searchsorted(firsts, np.arange(max(vocabulary.values()) + 2)).astype(np.int32)
    ranked = np.array([merges[pair] for pair in pairs], np.int64)
    letters = np.array([vocabulary[letter] for letter in LETTERS], np.int32)
    whole["model"] |= {"vocab": {}, "merges": []}
    whole["added_tokens"] = []
    added = [(index, *token) for index, token in _added(tokenizer).items()]
    told = {"size": _size(tokenizer), "added": added, "shell": json.dumps(whole), "qwen2": _is_qwen2(whole)}
    return [begins, seconds.astype(np.int32), ranked, letters, np.frombuffer(json.dumps(told).encode(), np.uint8)]


def _letters() -> list[str]:
    """The letter that stands for each byte (Radford et al. 2019): of Latin-1 if it can be seen, or one behind."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    behind = count(0x100)
    return [chr(byte if byte in shown else next(behind)) for byte in range(0x100)]


LETTERS = _letters()
_BYTES = {letter: byte for byte, letter in enumerate(LETTERS)}


def _is_qwen2(whole: dict[str, Any]) -> bool:
    """Whether a tokenizer, in the library's JSON, composes a text and splits it into words as Qwen2's."""
    parts = (whole["pre_tokenizer"] or {}).get("pretokenizers", [])
    split = {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": False}
    return bool(
        whole["normalizer"] in (None, {"type": "NFC"})
        and len(parts) == 2
        and (parts[0], parts[1]["type"], parts[1]["use_regex"]) == (split, "ByteLevel", False)
    )


def _is_byte_level(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether `_Words` finds the ids of the library."""
    from tokenizers import models

    model, splitter, behind = tokenizer.model, tokenizer.pre_tokenizer, tokenizer.post_processor
    plain = isinstance(model, models.BPE) and not (
        model.dropout or model.ignore_merges or model.continuing_subword_prefix or model.end_of_word_suffix
    )
    if (
        not plain
        or splitter is None
        or not (behind is None or json.loads(behind.__getstate__())["type"] == "ByteLevel")
    ):
        return False
    parts = json.loads(splitter.__getstate__())
    last = (parts.get("pretokenizers") or [parts])[-1]
    added, known = tokenizer.get_added_tokens_decoder().values(), tokenizer.get_vocab(with_added_tokens=False)
    return bool(
        (last["type"], last.get("add_prefix_space")) == ("ByteLevel", False)
        and known.keys() >= set(LETTERS)
        and not any(token.normalized or token.lstrip or token.rstrip or token.single_word for token in added)
    )


def _added(tokenizer: tokenizers.Tokenizer) -> dict[int, Added]:
    found = tokenizer.get_added_tokens_decoder()
    return {index: Added(token.content, token.special) for index, token in found.items()}


def _size(tokenizer: tokenizers.Tokenizer) -> int:
    return max(tokenizer.get_vocab().values(), default=-1) + 1


class _Words:
    """A byte-level BPE.

    Args:
        begins, seconds, ranked, letters: of `tables_of`.
        added: ids of the added tokens.
        shell: the library's tokenizer without its vocabulary, in JSON: it composes a text and splits it into words.
        qwen2: whether it does so as Qwen2's.
    """

    def __init__(
        self,
        begins: NDArray[np.int32],
        seconds: NDArray[np.int32],
        ranked: NDArray[np.int64],
        letters: NDArray[np.int32],
        added: dict[str, int],
        shell: str,
        qwen2: bool,
    ) -> None:
        # Numbers of a memoryview are Python's.
        self._begins, self._seconds, self._ranked = begins.data, seconds.data, ranked.data
        self._bytes = letters.data
        self._added, self._made, self._qwen2 = added, shell, qwen2
        longest_first = sorted(added, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def ids(self, text: str) -> list[int]:
        found, begin = [], 0
        for token in self._tokens.finditer(text):
            found += self._ids(text[begin : token.start()])
            found.append(self._added[token[0]])
            begin = token.end()
        return found + self._ids(text[begin:])

    def _ids(self, text: str) -> list[int]:
        """Those of a text without added tokens."""
        if self._qwen2 and text.isascii():
            words: list[bytes] = [word.encode() for word in QWEN2_ASCII_SPLIT.findall(text)]
        else:
            words = self._split(text)
        return [index for word in words for index in self._merged([self._bytes[byte] for byte in word])]

    @cached_property
    def _shell(self) -> tokenizers.Tokenizer:
        import tokenizers

        return tokenizers.Tokenizer.from_str(self._made)

    def _split(self, text: str) -> list[bytes]:
        """The words of a text, by the library."""
        if self._shell.normalizer is not None:
            text = self._shell.normalizer.normalize_str(text)
        words = self._shell.pre_tokenizer.pre_tokenize_str(text) if text else []
        return [bytes(map(_BYTES.__getitem__, word)) for word, _ in words]

    def _merged(self, ids: list[int]) -> list[int]:
        """The ids of a word's letters, merged: always the pair of the lowest rank, of several the first one."""
        end = len(ids)
        after, before = list(range(1, end + 1)), list(range(-1, end - 1))
        merges = [self._merge(*pair) for pair in pairwise(ids)]  # of each with the one behind it
        waiting = [(merge, place) for place, merge in enumerate(merges) if merge is not None]
        heapify(waiting)
        merges.append(None)
        while waiting:
            merge, place = heappop(waiting)
            if merges[place] != merge:  # one of the two has merged with another since
                continue
            gone = after[place]
            ids[place], after[place] = merge & _LOW, after[gone]
            ids[gone], merges[gone] = -1, None
            merges[place] = None
            if after[place] < end:
                before[after[place]] = place
            for left in (place, before[place]):
                if left >= 0 and after[left] < end:
                    merges[left] = found = self._merge(ids[left], ids[after[left]])
                    if found is not None:
                        heappush(waiting, (found, left))
                elif left >= 0:
                    merges[left] = None
        return [index for index in ids if index >= 0]

    def _merge(self, left: int, right: int) -> int | None:
        """The rank of a pair and what it becomes, as in the table; None: it does not merge."""
        end = self._begins[left + 1]
        place = bisect_left(self._seconds, right, self._begins[left], end)
        return self._ranked[place] if place < end and self._seconds[place] == right else None
