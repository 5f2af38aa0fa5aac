"""Which character of a text is spoken when: the phones' times and the words' pronunciations put together."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tools.demo_voice.files import write_whole
from tools.demo_voice.synthesis import PHONES, Utterance

_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_COSTS = (1.0, 1.0, 1.2)  # of a phone that is missing, added, or another one

Pronunciations = Mapping[str, Sequence[int]]


def pronounce(path: Path, texts: Sequence[str]) -> Pronunciations:
    """The phones of all words of `texts`, by word in small letters; they are kept in the file `path`."""
    known: dict[str, list[int]] = json.loads(path.read_text()) if path.exists() else {}
    words = sorted({word.lower() for text in texts for word in _WORD.findall(text)} - known.keys())
    if words:
        with ThreadPoolExecutor(2) as pool:
            known.update(zip(words, pool.map(_phones_of, words), strict=True))
        write_whole(path, lambda aside: aside.write_text(json.dumps(known)))
    return known


def _phones_of(word: str) -> list[int]:
    command = ["flite", "-voice", "slt", "-ps", "-t", word, "-o", "none"]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return [PHONES.index(phone) for phone in found.stdout.split() if phone != "pau"]


def places_of_phones(text: str, utterance: Utterance, known: Pronunciations) -> NDArray[np.int64]:
    """The place in `text` of the character that each phone of the utterance speaks: int64 [phones].

    A pause belongs to the sound that follows it, the last one to the end of the text.
    """
    expected: list[int] = []
    places: list[float] = []  # of each expected phone
    for word in _WORD.finditer(text):
        phones = known[word[0].lower()]
        expected += phones
        places += [word.start() + (index + 0.5) / len(phones) * len(word[0]) for index in range(len(phones))]
    spoken = np.flatnonzero(utterance.phones)
    matched = _match([int(utterance.phones[place]) for place in spoken], expected)
    at = np.array([*(places[index] for index in matched), len(text) - 1])
    found: NDArray[np.int64] = np.floor(at[np.searchsorted(spoken, np.arange(len(utterance.phones)))]).astype(np.int64)
    return found


def phones_at(utterance: Utterance, times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Which phone of the utterance sounds at each of `times` (seconds): its number."""
    found: NDArray[np.int64] = np.searchsorted(utterance.ends, times).clip(max=len(utterance.phones) - 1)
    return found


def _match(spoken: Sequence[int], expected: Sequence[int]) -> list[int]:
    """For each spoken phone, the expected one that stands for it: the cheapest monotonic assignment."""
    missing, added, other = _COSTS
    rows, columns = len(spoken) + 1, len(expected) + 1
    cost = np.zeros((rows, columns))
    cost[:, 0], cost[0] = added * np.arange(rows), missing * np.arange(columns)
    for row in range(1, rows):
        for column in range(1, columns):
            differ = other * (spoken[row - 1] != expected[column - 1])
            cost[row, column] = min(
                cost[row - 1, column - 1] + differ, cost[row - 1, column] + added, cost[row, column - 1] + missing
            )
    found = [0] * len(spoken)
    row, column = rows - 1, columns - 1
    while row > 0:
        if column and cost[row, column] == cost[row, column - 1] + missing:
            column -= 1
            continue
        found[row - 1] = max(0, column - 1)
        differ = other * (not column or spoken[row - 1] != expected[column - 1])
        if column and cost[row, column] == cost[row - 1, column - 1] + differ:
            column -= 1
        row -= 1
    return found
