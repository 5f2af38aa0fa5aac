"""`aligner`: says when each word of a speech is spoken, whose text is known; see docs/word_times.md.

in    audio        FP32 [n]    mono, full scale 1: a whole speech, or the next piece of one
      sample_rate  INT32 [1]   of the audio; with a whole speech or its first piece
      text         STRING [1]  of the whole speech; likewise
      language     STRING [1]  optional: such as English, en, en-US; likewise
      alignment    STRING [1]  optional: an id of the caller's, which the pieces of a speech have in common
      final        BOOL [1]    optional: false if more pieces follow
out   result       STRING [1]  JSON: `words`, see below, and `reason`, why they are an estimate, or null

A word has `text`, `start` and `end` in samples of the speech, `span`, `estimated`, and `confidence` unless that is
true. The answer to a piece has the words that it settled, that to the final piece has all words of the speech. A caller
sends a piece when the one before is answered.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voice_clone import compute
from voice_clone.aligner.engine import Engine, Samples
from voice_clone.aligner.speech import AlignedSpeech, pieces
from voice_clone.aligner.sphinx import PocketSphinx
from voice_clone.errors import NO_POCKETSPHINX, InvalidArgument, Overloaded, StreamNotFound, Unsupported, quoted
from voice_clone.server_settings import AlignerSettings
from voice_clone.settings import Settings
from voice_clone.speech import language_code
from voice_clone.triton.model import Model, Steps
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.turns import may_have_more

MOST_CHARACTERS = 20_000
MOST_SECONDS = 600.0
LOWEST_RATE, HIGHEST_RATE = 8_000, 192_000
MOST_HELD = 1 << 26  # samples of all speeches of which more pieces may come: an engine may keep them
IDLE_SECONDS = 60.0  # without a piece; then a speech is forgotten


@dataclass(eq=False)
class _Open:
    """A speech of which more pieces may come."""

    speech: AlignedSpeech
    rate: int
    caller: str
    samples: int = 0
    busy: bool = True
    came: float = field(default_factory=time.monotonic)


def _engine_of(settings: AlignerSettings) -> Engine:
    """The engine that the settings ask for.

    Raises:
        Unsupported: it cannot be had.
    """
    if settings.aligner_checkpoint_dir is None:
        try:
            return PocketSphinx()
        except ImportError:
            raise Unsupported(NO_POCKETSPHINX) from None
    from voice_clone.qwen3_aligner.engine import load  # with torch

    compute.prepare(settings)
    return load(settings.aligner_checkpoint_dir, settings)


class AlignerModel(Model):
    """Belongs to no family. Works on half a second of one speech at a time; between them callers take turns."""

    threads = 1  # pocketsphinx holds Python's global lock, so more would not be faster
    single = True
    rests_with = "aligner_checkpoint_dir"

    def load(self, given: Settings) -> None:
        settings = AlignerSettings.of(given)
        self._most = settings.max_alignments
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()

    def load_heavy(self, given: Settings) -> None:
        self._engine = _engine_of(AlignerSettings.of(given))

    def busy(self) -> bool:
        with self._lock:
            lately = time.monotonic() - IDLE_SECONDS
            return any(speech.came > lately for speech in self._open.values())

    def handle(self, request: Request, responder: Responder) -> Steps:
        audio = request.array("audio")
        assert audio is not None  # a required input
        samples: Samples = np.ascontiguousarray(audio.reshape(-1), np.float32)
        if not np.isfinite(samples).all():
            raise InvalidArgument("`audio` must be finite numbers, full scale 1")
        name, final = request.text("alignment"), request.number("final")
        final = True if final is None else final
        if name is None and not final:
            raise InvalidArgument("a speech in pieces needs an `alignment`, an id that its pieces have in common")
        speech = self._opened(name, request)
        ended = True  # what stops within a piece cannot go on
        try:
            speech.samples += len(samples)
            if speech.samples > MOST_SECONDS * speech.rate:
                raise InvalidArgument(f"a speech has at most {MOST_SECONDS:.0f} s; align its parts")
            with self._lock:
                others = sum(each.samples for each in self._open.values() if each is not speech)
            if others and others + speech.samples > MOST_HELD:
                raise Overloaded("the speeches that are aligned already are too long together; try again later")
            words: list[dict[str, Any]] = []
            for piece in pieces(samples, speech.rate):
                words += speech.speech.feed(piece)
                yield
            if final:
                words = speech.speech.end()
            ended = final
            return {"result": json.dumps({"words": words, "reason": speech.speech.reason}, ensure_ascii=False)}
        finally:
            with self._lock:
                speech.busy, speech.came = False, time.monotonic()
                if ended and name is not None and self._open.get(name) is speech:
                    del self._open[name]

    def _opened(self, name: str | None, request: Request) -> _Open:
        """The speech of a request.

        Raises:
            InvalidArgument, StreamNotFound, Overloaded.
        """
        caller = self.caller(request).name
        if name is None:
            return self._begun(request, caller)
        with self._lock:
            now = time.monotonic()
            self._open = {
                each: speech for each, speech in self._open.items() if speech.busy or now - speech.came < IDLE_SECONDS
            }
            speech = self._open.get(name)
            if speech is not None:
                if speech.busy or request.text("text") is not None:
                    raise InvalidArgument(f"`alignment` {quoted(name)} is that of another speech, or awaits an answer")
                speech.busy = True
                return speech
            if request.text("text") is None:
                raise StreamNotFound("no speech of this `alignment` is open; its first piece has its `text`")
            if not may_have_more([each.caller for each in self._open.values()], caller, self._most):
                raise Overloaded(f"{self._most} speeches are aligned already (max_alignments); try again later")
            self._open[name] = speech = self._begun(request, caller)
            return speech

    def _begun(self, request: Request, caller: str) -> _Open:
        text, rate = request.text("text"), request.number("sample_rate")
        if text is None or rate is None:
            raise InvalidArgument("a speech needs its `text` and `sample_rate`")
        if len(text) > MOST_CHARACTERS:
            raise InvalidArgument(f"the `text` has {len(text)} characters; at most {MOST_CHARACTERS} are allowed")
        if not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise InvalidArgument(f"`sample_rate` must lie in {LOWEST_RATE}..{HIGHEST_RATE}, it is {rate}")
        language = language_code(request.text("language"))
        return _Open(AlignedSpeech(self._engine, text, int(rate), language), int(rate), caller)
