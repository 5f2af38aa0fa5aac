"""A text with several voices, pauses or markup as one speech: `speak --ssml`, `--script`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from types import TracebackType
from typing import Any

from voice_clone_client.speeches.speech import Speech
from voice_clone_client.types import Chunk, is_whole
from voice_clone_client.word_times import BlockingWordTimes
from voice_clone_sound.joined_parts import Filter, JoinedParts
from voice_clone_text.pieces import Plan, Style
from voice_clone_text.planner import Settings, plan
from voice_clone_text.sequence import Part, Sequence, in_sequence, turns_of


class PartsSpeech(Iterator[Chunk]):
    """The parts of a text, each asked for when the first chunk of the one before it is there.

    Args:
        sequence: the parts.
        ask: asks the server for one; gives the speech, and its chunks as they are heard.
        rates: factors of the tempo of the parts, of which others than 1 need the extra `audio`.
        times: finds the times of its words; None if the caller does not want them.
        begins: where the texts that `sequence` has begin in that of `times`.
    """

    def __init__(
        self,
        sequence: Sequence,
        ask: Callable[[Part], tuple[Speech, Iterator[Chunk]]],
        rates: list[float],
        times: BlockingWordTimes | None = None,
        begins: list[int] | None = None,
    ) -> None:
        self._parts = sequence.parts
        self._ask = ask
        self._rates = rates
        self._times, self._begins = times, begins or [0]
        self._followed = -1  # the part whose words are looked for
        self._joined = JoinedParts(sequence, self._tempo)
        self._speeches = [ask(sequence.parts[0])]

    def __next__(self) -> Chunk:
        while self._joined.part is not None:
            current = self._joined.current
            try:
                chunk = self._joined.take(next(self._speeches[current][1]))
            except StopIteration:
                self._speeches[current][0].__exit__(None, None, None)
                chunk = self._joined.end()
            else:
                if len(self._speeches) == current + 1 < len(self._parts):
                    self._speeches.append(self._ask(self._parts[current + 1]))
            if self._times is not None:
                if self._followed < current:
                    self._followed, part = current, self._parts[current]
                    self._times.begin(part.span.text, _written(part, self._begins[part.turn]))
                self._times.feed(chunk.samples, chunk.sample_rate, self._joined.current > current)
            if len(chunk.samples) or chunk.index == 0:
                return chunk
        raise StopIteration

    @property
    def info(self) -> Mapping[str, Any] | None:
        """See `JoinedParts.info`."""
        return self._joined.info or None

    @property
    def whole(self) -> bool:
        """Whether all parts were read, and each ended with `stop` or `length`."""
        return self._joined.part is None and is_whole(self._joined.info.get("finish_reason"))

    def __enter__(self) -> PartsSpeech:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for speech, _ in self._speeches[self._joined.current :]:
            speech.close()

    def _tempo(self, index: int, rate: int) -> Filter | None:
        if self._rates[index] == 1.0:
            return None
        from voice_clone_sound.tempo import Tempo  # needs the extra

        return Tempo(rate, self._rates[index])


def plans_of(text: str, settings: Settings, script: bool) -> list[Plan]:
    """The plan of a text, or of each turn of a dialogue.

    Raises:
        ValueError: it is no SSML, or no dialogue.
    """
    turns = turns_of(text) if script else [(None, text)]
    return [plan(words, _with_voice(settings, name)) for name, words in turns]


def captioned(text: str, script: bool) -> tuple[str, list[int]]:
    """What the captions of a text show, which of a dialogue is what is said, a turn a line; where each turn begins.

    Raises:
        ValueError: it is no dialogue.
    """
    turns = [words for _, words in turns_of(text)] if script else [text]
    return "\n".join(turns), [0, *accumulate(len(words) + 1 for words in turns)]


def sequence_of(plans: list[Plan]) -> Sequence:
    """Texts one after the other.

    Raises:
        ValueError: there is nothing to speak.
    """
    return in_sequence((each, 0.0) for each in plans)


def _written(part: Part, begin: int) -> Callable[[int, int], tuple[int, int]]:
    """Where words of a part are in the text of the captions, in which its turn begins there."""

    def written(start: int, end: int) -> tuple[int, int]:
        first, last = part.span.written(start, end)
        return begin + first, begin + last

    return written


def _with_voice(settings: Settings, voice: str | None) -> Settings:
    return replace(settings, style=Style(voice, settings.style.language))
