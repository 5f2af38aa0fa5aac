"""The training data in memory, a step's clips drawn from it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tools.demo_voice.dataset import Record, read_shard, shard_path
from tools.demo_voice.qwen3_tts.variations import FACTORS, Variation, read_codes, variation_of, vary
from tools.demo_voice.synthesis import Utterance

Kind = Literal["codes", "aligned_codes", "test_codes"]


@dataclass(frozen=True, eq=False)
class Clip:
    """An utterance as it is played in one variation."""

    record: Record
    variation: Variation

    def play(self) -> Utterance:
        """Its audio."""
        return vary(self.record.utterance, self.variation)


@dataclass(frozen=True, eq=False)
class CodedClip(Clip):
    """A clip and its codes uint8 [frames, 16]. Its audio fills all of the frames but the end of the last one."""

    codes: NDArray[np.uint8]


class Recordings:
    """Some shards of the data.

    Args:
        work: the folder of all states.
        shards: how many.
        seed: of the variations.
        part: of the data; see `dataset`.
    """

    copies = len(FACTORS)

    def __init__(self, work: Path, shards: int, seed: int, part: str = "train") -> None:
        self._seed = seed
        self._shards = [read_shard(shard_path(work, part, shard)) for shard in range(shards)]
        self._first = np.cumsum([0, *(len(records) for records in self._shards)])
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

    def clip(self, index: int, copy: int) -> Clip:
        """Utterance `index` in its variation `copy`."""
        shard, place = self._place(index)
        return Clip(self._shards[shard][place], variation_of(self._seed, shard, place, copy))

    def _place(self, index: int) -> tuple[int, int]:
        """The shard of an utterance, and its place there."""
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        return shard, index - int(self._first[shard])


class Corpus(Recordings):
    """Recordings with the codes of their variations; see `Recordings`.

    Args:
        kind: of the codes. Of the training data as the codec's encoder finds them, or as the talker says them; of
            sentences that are kept out of the training (the part `seen`) as the encoder finds them.
    """

    def __init__(self, work: Path, shards: int, seed: int, kind: Kind = "codes") -> None:
        super().__init__(work, shards, seed, part_of(kind))
        self._codes = [read_codes(codes_path(work, shard, kind)) for shard in range(shards)]

    def lengths(self) -> NDArray[np.int64]:
        """Frames of all clips: int64 [utterances, copies]."""
        return np.array([[len(codes) for codes in copies] for shard in self._codes for copies in shard])

    def clip(self, index: int, copy: int) -> CodedClip:
        """Utterance `index` in its variation `copy`."""
        shard, place = self._place(index)
        return CodedClip(**vars(super().clip(index, copy)), codes=self._codes[shard][place][copy])


def part_of(kind: Kind) -> str:
    """The part of the data whose codes these are."""
    return "seen" if kind == "test_codes" else "train"


def codes_path(work: Path, shard: int, kind: Kind = "codes") -> Path:
    """Where the codes of a shard lie."""
    return work / kind / f"{shard:05}.npz"
