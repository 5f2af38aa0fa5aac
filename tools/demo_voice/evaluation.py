"""How well a checkpoint speaks: the words, and the voice, each judged by programs that are not ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tools.demo_voice.dataset import Record, read_shard, shard_path
from tools.demo_voice.identification import Identifier, traits
from tools.demo_voice.listening import Errors, Listener
from tools.demo_voice.synthesis import SAMPLE_RATE

ENROLLED = 12  # clips by which a speaker is known to the identification


class Voice(Protocol):
    """Something that clones voices: a bare engine, or a server."""

    @property
    def sample_rate(self) -> int:
        """Hz of what it says."""

    def say(self, text: str, clip: NDArray[np.float32], transcript: str | None, seed: int) -> NDArray[np.float32]:
        """Speak `text` in the voice of `clip` (24 kHz); in context with its transcript, else by its embedding."""


@dataclass
class Score:
    """What was heard of some trials.

    Attributes:
        grammar, open: word errors.
        found, trials: how often the right speaker was found, of how many trials.
        seconds: of speech.
    """

    grammar: Errors = field(default_factory=Errors)
    open: Errors = field(default_factory=Errors)
    found: int = 0
    trials: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        words = f"grammar WER {self.grammar.rate:6.1%}  open WER {self.open.rate:6.1%}  {self.grammar.words:4} words"
        speaker = f"  right speaker {self.found / self.trials:4.0%} of {self.trials}" if self.trials else ""
        return f"{words}  {self.seconds:6.1f} s{speaker}"


def evaluate(voice: Voice, work: Path, sentences: int) -> Iterator[tuple[str, Score]]:
    """Scores by name: the source, then each mode, on seen and on held-out speakers; `sentences` of each.

    The sentences, and the clips that the voices are taken from, are none of the training.
    """
    listener = Listener()
    for part in ("seen", "held_out"):
        records = read_shard(shard_path(work, part, 0))
        cases = _cases(records, sentences)
        identifier = _enrol(records) if part == "held_out" else None
        scores = {mode: Score() for mode in ("source", "x-vector", "in context")}
        for seed, (said, reference) in enumerate(cases):
            clip = reference.utterance.samples
            for mode, score in scores.items():
                if mode == "source":
                    samples, rate = said.utterance.samples, SAMPLE_RATE
                else:
                    transcript = reference.text if mode == "in context" else None
                    samples, rate = voice.say(said.text, clip, transcript, seed), voice.sample_rate
                _judge(score, listener, identifier, samples, rate, said)
        for mode, score in scores.items():
            yield f"{part.replace('_', '-')} speakers, {mode}", score


def _judge(
    score: Score, listener: Listener, identifier: Identifier | None, samples: NDArray[np.float32], rate: int,
    said: Record,
) -> None:  # fmt: skip
    score.seconds += len(samples) / rate
    score.grammar += listener.grammar(samples, rate, said.text)
    score.open += listener.open(samples, rate, said.text)
    if identifier is not None:
        score.trials += 1
        long_enough = len(samples) > rate // 4
        score.found += long_enough and identifier.find(traits(samples, rate)) == said.speaker


def _cases(records: list[Record], count: int) -> list[tuple[Record, Record]]:
    """Sentences to say, each with a clip of its speaker; the speakers take turns."""
    of_speaker: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        of_speaker[record.speaker].append(record)
    cases = []
    for turn in range(ENROLLED):
        for clips in of_speaker.values():
            # The last ones, since the first ones make the speaker known to the identification.
            if turn + 1 < len(clips):
                cases.append((clips[-1 - turn], clips[-2 - turn]))
    return cases[:count]


def _enrol(records: list[Record]) -> Identifier:
    clips: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
    for record in records:
        if len(clips[record.speaker]) < ENROLLED:
            clips[record.speaker].append(traits(record.utterance.samples, SAMPLE_RATE))
    return Identifier(clips)
