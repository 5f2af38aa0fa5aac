"""The training data in memory, a step's clips drawn from it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tools.demo_voice.dataset import Record, read_shard, shard_path
from tools.demo_voice.synthesis import Utterance
from tools.families.qwen3_tts.demo_voice.variations import Variation, read_codes, variation_of, vary


@dataclass(frozen=True, eq=False)
class Clip:
    """An utterance as it is played in one variation."""

    record: Record
    variation: Variation
    codes: NDArray[np.uint8]

    def play(self) -> Utterance:
        """Its audio, which fills all frames of `codes` but the end of the last one."""
        return vary(self.record.utterance, self.variation)


class Corpus:
    """Some shards of the training data, with the codes of their variations.

    Args:
        work: the folder of all states.
        shards: how many.
        seed: as the codes were made with.
    """

    def __init__(self, work: Path, shards: int, seed: int) -> None:
        self._seed = seed
        self._shards = [read_shard(shard_path(work, "train", shard)) for shard in range(shards)]
        self._codes = [read_codes(codes_path(work, shard)) for shard in range(shards)]
        self._first = np.cumsum([0, *(len(records) for records in self._shards)])
        self.copies = len(self._codes[0][0])
        flat = [record for records in self._shards for record in records]
        self.speakers = [record.speaker for record in flat]
        self.texts = [record.text for record in flat]
        self._of_speaker: dict[int, list[int]] = defaultdict(list)
        for index, speaker in enumerate(self.speakers):
            self._of_speaker[speaker].append(index)

    def __len__(self) -> int:
        return int(self._first[-1])

    def of_speaker(self, speaker: int) -> list[int]:
        """All utterances of a speaker."""
        return self._of_speaker[speaker]

    def lengths(self) -> NDArray[np.int64]:
        """Frames of all clips: int64 [utterances, copies]."""
        return np.array([[len(codes) for codes in copies] for shard in self._codes for copies in shard])

    def clip(self, index: int, copy: int) -> Clip:
        """Utterance `index` in its variation `copy`."""
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        place = index - int(self._first[shard])
        variation = variation_of(self._seed, shard, place, copy)
        return Clip(self._shards[shard][place], variation, self._codes[shard][place][copy])


def codes_path(work: Path, shard: int) -> Path:
    """Where the codes of a shard of the training data lie."""
    return work / "codes" / f"{shard:05}.npz"
