"""How well a checkpoint speaks: the words, and the voice, each judged by programs that are not ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
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
PARTS = ("seen", "held_out")  # speakers of the training, and others
MODES = ("x-vector", "in context")
SHORTEST, LONGEST = 0.5, 1.6  # times the source's length


class Voice(Protocol):
    """Something that clones voices: a bare engine, or a server."""

    @property
    def sample_rate(self) -> int:
        """Hz of what it says."""

    def say(self, text: str, clip: NDArray[np.float32], transcript: str | None, seed: int) -> NDArray[np.float32]:
        """Speak `text` in the voice of `clip` (24 kHz); in context with its transcript, else by its embedding."""


@dataclass(frozen=True)
class Heard:
    """What was heard of one speech.

    Attributes:
        grammar, open: word errors.
        right: whether it was found to be the right speaker; None: the speaker was not looked for.
        seconds: of speech.
        odd: whether it is less than half or more than 1.6 times as long as the source's: cut off, or a runaway.
    """

    grammar: Errors
    open: Errors
    right: bool | None
    seconds: float
    odd: bool


@dataclass
class Score:
    """What was heard of some speeches."""

    heard: list[Heard] = field(default_factory=list)

    def errors(self, judge: str) -> Errors:
        """All word errors of `grammar` or `open`."""
        return sum((getattr(each, judge) for each in self.heard), Errors())

    def interval(self, judge: str) -> tuple[float, float]:
        """The word error rate's 95 % interval, by resampling the speeches (Efron 1979); always the same."""
        errors = np.array([(each.wrong, each.words) for each in (getattr(one, judge) for one in self.heard)])
        drawn = errors[np.random.default_rng(0).integers(len(errors), size=(2000, len(errors)))].sum(axis=1)
        low, high = np.quantile(drawn[:, 0] / np.maximum(1, drawn[:, 1]), [0.025, 0.975])
        return float(low), float(high)

    @property
    def right(self) -> tuple[int, int]:
        """How often the right speaker was found, of how many speeches."""
        looked = [each.right for each in self.heard if each.right is not None]
        return sum(looked), len(looked)

    @property
    def odd(self) -> int:
        """How many speeches have a length that cannot be."""
        return sum(each.odd for each in self.heard)

    def __str__(self) -> str:
        grammar, found = self.errors("grammar"), self.right
        words = f"grammar WER {grammar.rate:6.1%}  open WER {self.errors('open').rate:6.1%}  {grammar.words:4} words"
        speaker = f"  right speaker {found[0] / found[1]:4.0%} of {found[1]}" if found[1] else ""
        return f"{words}  {sum(each.seconds for each in self.heard):6.1f} s  odd lengths {self.odd}{speaker}"


@dataclass(frozen=True, eq=False)
class Case:
    """A sentence to say in the voice of another clip of the same speaker.

    Attributes:
        part: `seen` or `held_out`, as the speaker is.
        said, reference: by the source.
        seed: of the speech.
    """

    part: str
    said: Record
    reference: Record
    seed: int

    def transcript(self, mode: str) -> str | None:
        """Of the reference, in the mode that has one."""
        return self.reference.text if mode == "in context" else None


class Evaluation:
    """Sentences and judges. The sentences, and the clips that voices are taken from, are none of the training.

    Args:
        work: folder of the training's states, where the data are.
        sentences: of each part.
    """

    def __init__(self, work: Path, sentences: int) -> None:
        self._listener = Listener()
        self.cases: list[Case] = []
        for part in PARTS:
            records = read_shard(shard_path(work, part, 0))
            chosen = enumerate(_cases(records, sentences))
            self.cases += [Case(part, said, reference, seed) for seed, (said, reference) in chosen]
        self._identifier = _enrol(records)  # of the last part, the held-out speakers

    def source(self) -> Iterator[tuple[str, Score]]:
        """The scores of the sentences as the source says them, by part."""
        yield from self._scores(lambda case: (case.said.utterance.samples, SAMPLE_RATE))

    def scores(self, voice: Voice, mode: str) -> Iterator[tuple[str, Score]]:
        """The scores of a voice in one of `MODES`, by part."""

        def say(case: Case) -> tuple[NDArray[np.float32], int]:
            clip, transcript = case.reference.utterance.samples, case.transcript(mode)
            return voice.say(case.said.text, clip, transcript, case.seed), voice.sample_rate

        yield from self._scores(say)

    def _scores(self, say: Callable[[Case], tuple[NDArray[np.float32], int]]) -> Iterator[tuple[str, Score]]:
        for part in PARTS:
            yield part, Score([self._judge(case, *say(case)) for case in self.cases if case.part == part])

    def _judge(self, case: Case, samples: NDArray[np.float32], rate: int) -> Heard:
        right = None
        if case.part == "held_out":
            long_enough = len(samples) > rate // 4
            right = long_enough and self._identifier.find(traits(samples, rate)) == case.said.speaker
        text, seconds = case.said.text, len(samples) / rate
        ratio = seconds / (len(case.said.utterance.samples) / SAMPLE_RATE)
        odd = not SHORTEST < ratio < LONGEST
        heard = self._listener
        return Heard(heard.grammar(samples, rate, text), heard.open(samples, rate, text), right, seconds, odd)


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
