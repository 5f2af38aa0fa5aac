"""The training data: sentences, each spoken by a random speaker, in shards that are made one by one.

An utterance depends on the seed, the part and its number alone, so shards can be made in any order, side by side, and
again. Parts: `train`; `seen` (new sentences, speakers of the training); `held_out` (new sentences, new speakers).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.demo_voice import grammar
from tools.demo_voice.files import save_arrays
from tools.demo_voice.side_by_side import each_done
from tools.demo_voice.speakers import Speaker, speakers
from tools.demo_voice.synthesis import Utterance, speak

TEST_SHARE = 0.05  # of all sentences; they are kept out of the training
_RULES = grammar.rules()


@dataclass(frozen=True, eq=False)
class Record:
    """An utterance of a shard: who said what."""

    speaker: int
    text: str
    utterance: Utterance


def sentence_of(seed: int, part: str, number: int) -> str:
    """The text of an utterance; a text of the other parts is none of the training."""
    chance = random.Random(f"{seed} {part} {number}")
    while True:
        text = grammar.sentence(_RULES, chance)
        if (random.Random(text).random() < TEST_SHARE) != (part == "train"):
            break
    if part == "train":  # what a user types is not always a tidy sentence
        text = text.rstrip(".") if chance.random() < 0.1 else text
        text = text.lower() if chance.random() < 0.05 else text
    return text


def record_of(seed: int, part: str, number: int) -> Record:
    """Utterance `number` of a part, spoken."""
    cast = speakers()
    chance = random.Random(f"{seed} speaker of {part} {number}")
    chosen: Speaker = chance.choice([speaker for speaker in cast if speaker.held_out == (part == "held_out")])
    text = sentence_of(seed, part, number)
    return Record(cast.index(chosen), text, speak(chosen, text))


def make_shard(path: Path, seed: int, part: str, index: int, size: int) -> None:
    """Write shard `index` of a part; `size`: utterances of a shard."""
    records = [record_of(seed, part, index * size + place) for place in range(size)]
    sources = [{"speaker": record.speaker, "text": record.text} for record in records]
    spoken = [record.utterance for record in records]
    save_arrays(
        path,
        samples=np.concatenate([each.pcm for each in spoken]),
        lengths=np.array([len(each.pcm) for each in spoken]),
        phones=np.concatenate([each.phones for each in spoken]),
        ends=np.concatenate([each.ends for each in spoken]),
        counts=np.array([len(each.phones) for each in spoken]),
        sources=np.frombuffer(json.dumps(sources).encode(), np.uint8),
    )


def read_shard(path: Path) -> list[Record]:
    """The utterances of a shard."""
    with np.load(path) as file:
        arrays: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
    samples = np.split(arrays["samples"], np.cumsum(arrays["lengths"])[:-1])
    cuts = np.cumsum(arrays["counts"])[:-1]
    phones, ends = np.split(arrays["phones"], cuts), np.split(arrays["ends"], cuts)
    sources = json.loads(arrays["sources"].tobytes())
    return [
        Record(each["speaker"], each["text"], Utterance(wave, *labels))
        for each, wave, *labels in zip(sources, samples, phones, ends, strict=True)
    ]


def shard_path(work: Path, part: str, index: int) -> Path:
    """Where a shard lies."""
    return work / "data" / part / f"{index:05}.npz"


def make_data(work: Path, seed: int, shards: int, size: int, jobs: int) -> Iterator[str]:
    """Make the shards that are not there yet, of `size` utterances each; yields what is done."""
    wanted = [("seen", 0), ("held_out", 0), *(("train", index) for index in range(shards))]
    missing = [(part, index) for part, index in wanted if not shard_path(work, part, index).exists()]
    calls = [(shard_path(work, *each), seed, *each, size) for each in missing]
    for (part, index), _ in zip(missing, each_done(jobs, make_shard, calls), strict=True):
        yield f"shard {index} of {part}"
