"""The audio of an utterance for the client of a WebSocket."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..audio import Encoder
from ..long_text.long_speech import LongSpeech
from ..long_text.sentence_speech import SentenceChunk
from .messages import StreamConfig


@dataclass(eq=False)
class Utterance:
    """A text from its first piece to input.done."""

    index: int
    config: StreamConfig
    speech: LongSpeech
    began: float
    """Time of its first text, on the clock of the event loop."""
    first_audio: float | None = None
    """Time of its first audio."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its text is complete."""
    failed: bool = False
    finish_reason: str | None = None
    """How its speech ended; the worst of its sentences."""
    over: bool = False
    """Whether its session.done was sent."""
    sent: float = 0.0
    """Seconds of audio, before the change of speed."""
    sentences: int = 0
    """Complete ones that were sent."""
    task: asyncio.Task[None] | None = None

    def milliseconds(self, seconds: float) -> int:
        """The duration after the change of speed."""
        return round(1000 * seconds / self.config.speed)


class Sender(Protocol):
    """Sends to the client; waits while the client reads slowly."""

    async def send_message(self, kind: str, values: Mapping[str, Any]) -> None:
        """Send a message."""

    async def send_audio(self, data: bytes) -> None:
        """Send a binary frame."""


class Output:
    """Encodes the chunks of an utterance and sends them, with the messages around them."""

    def __init__(self, sender: Sender, utterance: Utterance) -> None:
        self._sender = sender
        self._utterance = utterance
        self._config = utterance.config
        self._encoder: Encoder | None = None
        self._place: dict[str, int] = {}
        self._bytes = 0  # of the sentence
        self._seconds = 0.0  # of the sentence, before the change of speed
        self._unsent = 0.0  # of these

    async def add(self, chunk: SentenceChunk) -> None:
        """Send a chunk."""
        config, utterance = self._config, self._utterance
        if self._encoder is None or (chunk.first and not config.stream_audio):
            self._encoder = Encoder(
                config.response_format,
                chunk.sample_rate,
                config.sample_rate,
                config.speed,
                streaming=config.stream_audio,
            )
        if chunk.first:
            await self._start(chunk, self._encoder)
        data = await self._encoder.encode_aside(chunk.samples)
        self._unsent += len(chunk.samples) / chunk.sample_rate
        if not config.stream_audio:
            if not chunk.final:
                return
            data += await self._encoder.finish_aside()
        await self._send(data)
        utterance.sent += self._unsent
        self._seconds += self._unsent
        self._unsent = 0.0
        if chunk.final:
            utterance.sentences += 1
            length = utterance.milliseconds(self._seconds)
            info = dict(chunk.info or {})
            done = {"total_bytes": self._bytes, "milliseconds": length, "finish_reason": info.get("finish_reason")}
            await self._sender.send_message("audio.done", {**self._place, **done, "info": info})

    async def finish(self) -> None:
        """Send the rest of the encoder's output."""
        if self._encoder is not None and self._config.stream_audio:
            await self._send(await self._encoder.finish_aside())

    async def _start(self, chunk: SentenceChunk, encoder: Encoder) -> None:
        self._place = {"utterance_index": self._utterance.index, "sentence_index": chunk.sentence_index}
        self._bytes, self._seconds = 0, 0.0
        await self._sender.send_message(
            "audio.start",
            {
                **self._place,
                "sentence_text": chunk.sentence.text,
                "start": chunk.sentence.start,
                "end": chunk.sentence.end,
                "format": encoder.format.name,
                "sample_rate": encoder.sample_rate,
                "seed": chunk.seed,
            },
        )

    async def _send(self, data: bytes) -> None:
        if not data:
            return
        if self._utterance.first_audio is None:
            self._utterance.first_audio = asyncio.get_running_loop().time()
        self._bytes += len(data)
        if self._config.audio_frames == "binary":
            await self._sender.send_audio(data)
        else:
            await self._sender.send_message(
                "audio.chunk", {**self._place, "audio_b64": base64.b64encode(data).decode()}
            )
