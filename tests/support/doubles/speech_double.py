"""A client that speaks known samples: a double of `AsyncClient`, with a family of each sample rate that it is given."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from voice_clone_client import Cancelled, Chunk, Family, Incomplete, InvalidArgument, Overloaded, SpeechStatus
from voice_clone_client.backends import EVENT_LOOP, Changes
from voice_clone_client.speeches.parts_reader import PartsReader
from voice_clone_client.speeches.streaming_text import AsyncStreamingTextSpeech
from voice_clone_client.word_times import AsyncWordTimes
from voice_clone_text.parts import Part, WrittenText

from tests.support.doubles.triton_double import Failure, decoded, response, without_aligner

RATE = 24000
FRAME = 1920
RATES = {"qwen3_tts": RATE}


def samples_of(text: str, seed: int | None, frame: int = FRAME) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What the double says: a frame a word, other samples for another text or seed."""
    generator = np.random.default_rng([*text.encode(), seed or 0])
    return generator.uniform(-1, 1, frame * len(text.split())).astype(np.float32)


class DoubleSpeech(AsyncIterator[Chunk]):
    """A speech of the double, a chunk a word. One whose end is missed lacks half of its last word."""

    def __init__(self, double: Double, text: str, options: dict[str, Any]) -> None:
        self.double, self.text, self.options = double, text, options
        self.missed = double.misses(text)
        self.index = 0
        self.closed = asyncio.Event()
        self.info: dict[str, Any] | None = None
        self.finish_reason: str | None = None

    @property
    def whole(self) -> bool:
        return self.finish_reason == "stop"

    async def __anext__(self) -> Chunk:
        words = self.text.split()
        if self.index == 0:
            self.double.live += 1
            self.double.most_live = max(self.double.most_live, self.double.live)
        if self.index == len(words):
            self.double.live -= 1
            if self.options.get("require_whole") and not self.whole:
                raise Incomplete(self.finish_reason)
            raise StopAsyncIteration
        await self.pass_gate()
        await asyncio.sleep(0)
        word = words[self.index]
        if word.strip(".") == "Fail":
            raise Overloaded("the queue is full")
        frame = self.double.frame
        data = samples_of(self.text, self.options["seed"], frame)[frame * self.index : frame * (self.index + 1)]
        self.index += 1
        final = self.index == len(words)
        data = data[: frame // 2] if final and self.missed else data
        info: dict[str, Any] | None = None
        if final or self.index == 1:
            info = {"frames": self.index, "text_tokens": len(words), "mode": "icl"}
        if info and final:
            self.finish_reason = info["finish_reason"] = "budget" if self.missed else "stop"
        self.info = info or self.info
        rate = self.double.rates[self.options.get("model", next(iter(self.double.rates)))]
        return Chunk(data, rate, self.index - 1, final, info)

    async def pass_gate(self) -> None:
        if self.double.gate is not None:
            turn = asyncio.ensure_future(self.double.gate.acquire())
            closed = asyncio.ensure_future(self.closed.wait())
            try:
                await asyncio.wait((turn, closed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                turn.cancel()
                closed.cancel()
            if self.closed.is_set():
                raise Cancelled("closed")

    def close(self) -> None:
        self.closed.set()


class WrittenDouble(DoubleSpeech):
    """A part whose text is being written: a chunk for each word, as soon as the word has its end.

    One whose end is missed ends with `text_left` before its last word.
    """

    def __init__(
        self, double: Double, part: Part, text: WrittenText, changed: Changes, options: dict[str, Any]
    ) -> None:
        super().__init__(double, "", options)
        self.part = part
        self.changed = changed
        self.status = SpeechStatus("running", None, 0.0, None, 0.0)
        text.learn(double.part_characters)

    async def end(self) -> None:
        self.close()

    def close(self) -> None:
        super().close()
        self.changed.notify_all()

    async def __anext__(self) -> Chunk:
        part = self.part

        def has_word() -> bool:
            whole_words = len(part.text.split()) - (not part.text.endswith(" "))
            return part.ended or whole_words > self.index or self.closed.is_set()

        await self.changed.wait_for(has_word)
        if self.closed.is_set():
            raise Cancelled("closed")
        await self.pass_gate()
        self.text = part.text
        words = self.text.split()
        frame = self.double.frame if self.index < len(words) else 0
        self.index = min(self.index + 1, len(words))
        left = part.ended and self.index == len(words) - 1 and self.double.misses(self.text)
        final = left or (part.ended and self.index == len(words))
        ends = [found.end() for found in re.finditer(r"\S+", self.text)]
        characters = ends[self.index - 1]
        info = {"frames": self.index, "text_tokens": len(words), "mode": "x_vector", "characters": characters}
        if final:
            self.finish_reason = info["finish_reason"] = "text_left" if left else "stop"
        self.info = info
        sound = self.double.sounds[self.index - 1] if self.double.sounds and frame else np.zeros(frame, np.float32)
        return Chunk(sound, RATE, self.index - 1, final, info)


class Double:
    """A client; with a gate, each chunk takes a permit of it. A word has a frame of so many samples.

    `rates` are the sample rates of the families; the first is the default. `misses` says of a text whether this time
    its end is missed. `align` is the aligner, see `triton_double`. `sounds` are those of the words of a text that is
    being written, which are silent without them.
    """

    owner = None

    def __init__(
        self,
        gate: asyncio.Semaphore | None = None,
        frame: int = FRAME,
        rates: Mapping[str, int] = RATES,
        misses: Callable[[str], bool] = lambda text: False,
        part_characters: int | None = None,
        align: Callable[[dict[str, Any]], Any] = without_aligner,
        sounds: Sequence[NDArray[np.float32]] = (),
    ) -> None:
        self.sounds = sounds
        self.gate = gate
        self.align = align
        self.misses = misses
        self.part_characters = part_characters
        self.rates = rates
        self.models_calls = 0
        self.frame = frame
        self.speeches: list[DoubleSpeech] = []
        self.live = self.most_live = 0

    async def dictionaries(self, **page: Any) -> list[Any]:
        return []

    async def families(self) -> dict[str, Family]:
        self.models_calls += 1
        return dict.fromkeys(self.rates, Family())

    def speak(self, text: str, **options: Any) -> DoubleSpeech:
        self.speeches.append(DoubleSpeech(self, text, options))
        return self.speeches[-1]

    def speak_written(self, text: WrittenText, **options: Any) -> AsyncStreamingTextSpeech:
        changed = EVENT_LOOP.changes()

        def begin(part: Part) -> Any:
            self.speeches.append(WrittenDouble(self, part, text, changed, options | {"seed": part.seed}))
            return self.speeches[-1]

        reader = PartsReader(text, options.get("seed"), None, options.get("require_whole", False))
        return AsyncStreamingTextSpeech(begin, 0.0, reader, changed)

    def word_times(self, text: str, language: str | None = None, **options: Any) -> AsyncWordTimes:
        servers: Any = SimpleNamespace(backend=EVENT_LOOP, infer=self.infer)
        return AsyncWordTimes(servers, text, language, **options)

    async def infer(self, request: Any, timeout: float | None, id: str) -> Any:
        await asyncio.sleep(0)
        try:
            return response({"result": json.dumps(self.align(decoded(request))).encode()})
        except Failure as failure:
            raise InvalidArgument(failure.details) from None

    @property
    def texts(self) -> list[str]:
        return [speech.text for speech in self.speeches]
