"""Makes the sentences of a book that are missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from voice_clone_client.client import Client
from voice_clone_client.errors import Incomplete
from voice_clone_client.types import is_whole
from voice_clone_provenance.statements import Statement

from ..origin import check
from ..work import Work
from .kept import KeptSentences, KeptSound
from .planning import Sentence

_SENTENCE_SECONDS = 600.0  # for one speech of the server
_SHOWN = 60  # characters of a sentence in a message


class SentenceMaker:
    """Speaks sentences, several at once."""

    def __init__(
        self,
        client: Client,
        parallel: int,
        how: Mapping[str, Any],
        origin: Mapping[str, Any],
        kept: KeptSentences,
        tell: Callable[[str], None],
    ) -> None:
        self._client, self._how, self._origin, self._kept, self._tell = client, how, origin, kept, tell
        self._work = Work(client, parallel)

    def make(self, sentences: Iterable[Sentence]) -> int:
        """Make those of the sentences that are not kept; returns how many that were.

        Raises:
            Incomplete: the model missed the end of some, in each attempt. All others are made.
            VoiceCloneError: the server refused one, or did not make it for long.
        """
        wanted = {each.address: each for each in sentences}
        missing = [each for each in wanted.values() if self._kept.find(each.address) is None]
        left = characters = sum(len(each.text) for each in missing)
        began, missed = time.monotonic(), list[tuple[Sentence, str | None]]()
        for count, (sentence, reason) in enumerate(self._work.done(missing, self._made), 1):
            left -= len(sentence.text)
            seconds = round((time.monotonic() - began) * left / (characters - left))
            done = len(wanted) - len(missing) + count
            self._tell(f"{done} of {len(wanted)} sentences, {seconds // 60}:{seconds % 60:02} min left")
            if self._kept.find(sentence.address) is None:
                missed.append((sentence, reason))
        if missed:
            named = "; ".join(repr(each.text[:_SHOWN]) for each, _ in missed[:3])
            raise MissedEnds(missed[0][1], f"{len(missed)} sentences, such as {named}")
        return len(missing)

    def _made(self, sentence: Sentence) -> tuple[Sentence, str | None]:
        """Make a sentence; returns it, and how its last attempt ended."""
        for seed in sentence.seeds:
            sound, reason = self._work.patiently(partial(self._spoken, sentence.text, seed))
            if is_whole(reason):
                break
        self._kept.keep(sentence.address, sound, is_whole(reason))
        return sentence, reason

    def _spoken(self, text: str, seed: int) -> tuple[KeptSound, str | None]:
        asked = {**self._how, "seed": seed, "synthesizer": True, "deadline": _SENTENCE_SECONDS}
        with self._client.speak(text, **asked) as speech:
            samples, rate = speech.read()
            check(self._origin, speech.info)
            comment = str(Statement(self._origin["family"], (speech.info or {}).get("mark")))
            return KeptSound(samples, rate, comment), speech.finish_reason


class MissedEnds(Incomplete):
    """The model missed the end of sentences."""

    def __init__(self, reason: str | None, which: str) -> None:
        super().__init__(reason)
        self.args = (f"{which}: {self.args[0]}. With --allow-partial they are taken as they are",)
