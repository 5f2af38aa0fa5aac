"""The audio of an utterance for the client of a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voice_clone_client.long_text.text import SentenceChunk
from voice_clone_words.words import Word

from ..audio import Encoder
from ..speech.planned_text import PlannedChunk
from ..speech.synthesis import encoder
from .utterance import Piece, Utterance

if TYPE_CHECKING:  # it makes outputs
    from .session import Session


class Output:
    """Encodes the chunks of an utterance, and sends them with the limits of its pieces."""

    def __init__(
        self, listener: Session, utterance: Utterance, comment: Callable[[Mapping[str, Any] | None], str | None]
    ) -> None:
        self._listener = listener
        self._comment = comment
        self._utterance = utterance
        self._config = utterance.config
        self._encoder: Encoder | None = None
        self._piece: Piece | None = None
        self._unsent = 0.0  # seconds of the piece, before the change of speed
        self._whole = False  # whether the piece is a file that has its end

    async def add(self, chunk: SentenceChunk) -> None:
        """Send a chunk."""
        config, utterance = self._config, self._utterance
        if self._encoder is None or (chunk.first and not config.stream_audio):
            comment = self._comment(chunk.info)
            rate, streaming = chunk.sample_rate, config.stream_audio
            self._encoder = encoder(config, rate, config.speed, streaming=streaming, comment=comment)
            self._whole = False
        if self._piece is None or chunk.first:
            form, rate = self._encoder.format.name, self._encoder.sample_rate
            self._piece = Piece(chunk.sentence_index, chunk.sentence, chunk.seed, form, rate)
            await self._listener.tell_start(utterance, self._piece)
        for mark in chunk.marks if isinstance(chunk, PlannedChunk) else ():
            await self._listener.tell_mark(utterance, self._piece, mark)
        if utterance.words is not None:
            await self._tell_words(utterance.words.take(chunk))
        if self._whole:  # marks at the end of the text; a silence behind a flush would be in no file
            return
        data = await self._encoder.encode_aside(chunk.samples)
        self._unsent += len(chunk.samples) / chunk.sample_rate
        if not config.stream_audio:
            if not chunk.last:
                return
            data += await self._encoder.finish_aside()
            self._whole = True
        await self._send(self._piece, data)
        utterance.sent += self._unsent
        self._piece.seconds += self._unsent
        self._unsent = 0.0
        if chunk.last:
            utterance.pieces += 1
            await self._listener.tell_end(utterance, self._piece, dict(chunk.info or {}))

    async def finish(self) -> None:
        """Send the rest of the encoder's output."""
        if self._encoder is not None and self._piece is not None and self._config.stream_audio:
            await self._send(self._piece, await self._encoder.finish_aside())
        if self._utterance.words is not None:
            await self._tell_words(await self._utterance.words.rest())

    async def _tell_words(self, words: Sequence[Word]) -> None:
        if words:
            await self._listener.tell_words(self._utterance, words)

    async def _send(self, piece: Piece, data: bytes) -> None:
        if not data:
            return
        if self._utterance.first_audio is None:
            self._utterance.first_audio = asyncio.get_running_loop().time()
        piece.bytes += len(data)
        await self._listener.tell_audio(self._utterance, piece, data)
