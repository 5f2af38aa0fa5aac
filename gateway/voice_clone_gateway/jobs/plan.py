"""The plan of a job: what is spoken, sentence by sentence, and how the sentences are joined.

A plan is made once, with the job: later changes of a dictionary, or of the code that reads texts, do not touch it.

Each sentence has a seed of its own: that of the job, hashed with its text, its voice, language and instructions, and
with how many equal sentences come before it. So it does not depend on its place: a paragraph more or less leaves the
seeds of the others as they are.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from voice_clone_client.long_text.plan import content_seed
from voice_clone_text.dictionary import Scoped
from voice_clone_text.pieces import Span, Style
from voice_clone_text.sentences import MIN_CHARACTERS, SentenceSplitter
from voice_clone_text.sequence import Part
from voice_clone_text.sequence import Sequence as Joined

from ..schemas import SpeechRequest
from ..speech.segments import segments_of

PIECE = 1000
"""Characters of a text after which the thread that plans it lets others go on."""
FORM = 1
"""Of addresses: a change of what they are made of needs another number."""


@dataclass(frozen=True)
class PlannedPart:
    """Sentences that are spoken alike, one after the other."""

    way: int
    """Which of the plan's `ways`."""
    turn: int
    """Which of the texts of the request it is from."""
    written: tuple[int, int]
    """Where it is in that text."""
    pause: float
    """Seconds of silence before it."""
    rate: float
    gain: float
    sentences: Sequence[str]


@dataclass(frozen=True)
class JobPlan:
    """All that a job speaks."""

    ways: Sequence[Mapping[str, Any]]
    """How parts differ from the request: its fields by name."""
    parts: Sequence[PlannedPart]
    pause: float
    """Seconds of silence at the end."""
    warnings: Sequence[str]

    @property
    def count(self) -> int:
        """Of sentences."""
        return sum(len(part.sentences) for part in self.parts)

    @property
    def characters(self) -> int:
        """That are spoken."""
        return sum(len(sentence) for part in self.parts for sentence in part.sentences)

    @property
    def longest(self) -> int:
        """Characters of the longest sentence."""
        return max(len(sentence) for part in self.parts for sentence in part.sentences)

    @property
    def joined(self) -> Joined:
        """How the parts follow each other."""
        parts = (
            Part(each.turn, Span("", *each.written, Style(gain=each.gain)), each.pause, each.rate)
            for each in self.parts
        )
        return Joined(tuple(parts), self.pause, ())

    def dumps(self) -> str:
        """The plan as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def loads(cls, text: str) -> JobPlan:
        """The plan that `dumps` wrote."""
        known = json.loads(text)
        parts = [PlannedPart(**{**part, "written": tuple(part["written"])}) for part in known.pop("parts")]
        return cls(parts=parts, **known)


def plan_of(request: SpeechRequest, dictionaries: Sequence[Scoped], max_characters: int) -> JobPlan:
    """The plan of a request.

    Args:
        dictionaries: that are kept; see `segments_of`.
        max_characters: of a sentence.

    Raises:
        HTTPFailure, InvalidArgument: as `segments_of`.
    """
    found, ways, parts = segments_of(request, dictionaries), list[dict[str, Any]](), list[PlannedPart]()
    for part, options in zip(found.sequence.parts, found.options, strict=True):
        way = {"voice": options.voice_name, "language": options.language, "instructions": options.instructions}
        way |= {"style": options.style} if options.style or request.style else {}  # seeds are made of what there is
        if way not in ways:
            ways.append(way)
        least = min(MIN_CHARACTERS, max_characters)
        splitter = SentenceSplitter(min_characters=least, max_characters=max_characters)
        sentences, text = list[str](), part.span.text
        for begin in range(0, len(text), PIECE):
            found_now = splitter.feed(text[begin : begin + PIECE], final=begin + PIECE >= len(text))
            sentences += [each.text for each in found_now if each.spoken]
            time.sleep(0)  # other threads go on
        written, gain = (part.span.start, part.span.end), part.span.style.gain
        sentences = sentences or [part.span.text]
        parts.append(PlannedPart(ways.index(way), part.turn, written, part.pause, part.rate, gain, sentences))
    return JobPlan(ways, parts, found.sequence.pause, [*found.warnings])


@dataclass(frozen=True)
class PlannedSentence:
    """A sentence of a job, as the server is asked for it."""

    text: str
    way: int
    seeds: Sequence[int]
    """Of the attempts at it: the first one, and those after an attempt whose end the model missed."""
    addresses: Sequence[str]
    """Of the speech of each attempt."""


def sentences_of(
    plan: JobPlan, owner: str, asked: Sequence[Mapping[str, Any]], seed: int, attempts: int
) -> Iterator[PlannedSentence]:
    """The sentences of a plan in their order, with their addresses.

    Args:
        owner: of the job. What owners make lies apart, so that none learns what another one had spoken.
        asked: all that changes the sound of a sentence besides its text and seed, for each of the plan's ways. It is
            the same after a restart, and fit for JSON.
        seed: of the job.
        attempts: how many seeds a sentence has.
    """
    seen = Counter[str]()
    ways = [_json(each) for each in plan.ways]
    ways_asked = [_json(each) for each in asked]
    for part in plan.parts:
        for text in part.sentences:
            content = f"{ways[part.way]}\n{text}"
            before, seen[content] = seen[content], seen[content] + 1
            seeds = [content_seed(seed, content, before, attempt) for attempt in range(attempts)]
            made_of = [f"{FORM}\n{owner}\n{each}\n{ways_asked[part.way]}\n{text}" for each in seeds]
            yield PlannedSentence(text, part.way, seeds, [sha256(each.encode()).hexdigest() for each in made_of])


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
