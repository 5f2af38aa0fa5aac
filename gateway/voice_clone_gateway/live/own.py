"""The gateway's own WebSocket protocol; `routes.websocket` describes it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from voice_clone_text.pieces import Mark
from voice_clone_words.words import Word

from ..http.errors import HTTPFailure, failure
from ..speech.audited import usage
from ..speech.forms import transcribed
from ..speech.synthesis import check_options, is_voiceless
from .config import StreamConfig
from .messages import Cancel, Close, InputDone, InputFlush, InputText, parse
from .session import Session
from .utterance import Piece, Utterance

_FIELDS = {name: name for name in ("text", *StreamConfig.model_fields)}


class OwnSession(Session):
    """A session of the gateway's own protocol: one utterance after another, as `session.config` says."""

    _config: StreamConfig | None = None

    async def follow(self, message: Any) -> None:
        command = parse(message)
        if isinstance(command, StreamConfig):
            check_options(self._settings, command)
            await is_voiceless(self._services, command)  # refuses what lacks a voice
            await self._services.dictionaries.chosen(self._services, self._client, command)  # and unknown dictionaries
            self.keep(command)
            self._config = command
        elif isinstance(command, InputText):
            await self.write(command.text, self._configured())
        elif isinstance(command, InputFlush):
            self.flush()
        elif isinstance(command, InputDone):
            self.end(self._configured())
        elif isinstance(command, Cancel):
            await self._cancel(command.played_ms)
        elif isinstance(command, Close):
            await self.stop()
            await self.close(1000)

    def _configured(self) -> StreamConfig:
        if self._config is None:
            raise HTTPFailure(400, "session.config must be the first message", "invalid_argument", param="type")
        return self._config

    async def _cancel(self, played_ms: float | None) -> None:
        """Stop all utterances, and report how far each was spoken."""
        ended = [utterance for utterance in await self.stop() if not utterance.over]
        for utterance in ended:
            heard = utterance.sent
            if played_ms is not None:
                heard, played_ms = min(heard, played_ms / 1000 * utterance.config.speed), 0.0
            report = utterance.speech.report(heard)
            report_fields: dict[str, Any] = {
                "utterance_index": utterance.index,
                "sentences": report.sentences,
                "characters": report.characters,
                "milliseconds": utterance.milliseconds(report.seconds),
            }
            if utterance.words is not None:
                report_fields["heard"] = utterance.words.heard(heard / utterance.config.speed)
            if report.partial is not None:
                report_fields["partial"] = {
                    "sentence_text": report.partial.text,
                    "start": report.partial.start,
                    "end": report.partial.end,
                    "milliseconds": utterance.milliseconds(report.partial_seconds),
                }
            await self._tell("session.cancelled", report_fields)
        if not ended:
            nothing = {"utterance_index": None, "sentences": 0, "characters": 0, "milliseconds": 0}
            await self._tell("session.cancelled", nothing)

    async def tell_start(self, utterance: Utterance, piece: Piece) -> None:
        about = {
            "sentence_text": piece.sentence.text,
            "start": piece.sentence.start,
            "end": piece.sentence.end,
            "format": piece.format,
            "sample_rate": piece.sample_rate,
            "seed": piece.seed,
        }
        await self._tell("audio.start", {**_place(utterance, piece), **about})

    async def tell_words(self, utterance: Utterance, words: Sequence[Word]) -> None:
        shown = [transcribed(word) for word in words]
        await self._tell("audio.words", {"utterance_index": utterance.index, "words": shown})

    async def tell_mark(self, utterance: Utterance, piece: Piece, mark: Mark) -> None:
        await self._tell("mark", {**_place(utterance, piece), **mark._asdict()})

    async def tell_audio(self, utterance: Utterance, piece: Piece, data: bytes) -> None:
        if utterance.config.audio_frames == "binary":
            await self.send_binary(data)
        else:
            await self._tell("audio.chunk", {**_place(utterance, piece), "audio_b64": base64.b64encode(data).decode()})

    async def tell_end(self, utterance: Utterance, piece: Piece, info: Mapping[str, Any]) -> None:
        done = {
            "total_bytes": piece.bytes,
            "milliseconds": utterance.milliseconds(piece.seconds),
            "finish_reason": info.get("finish_reason"),
            "info": info,
        }
        await self._tell("audio.done", {**_place(utterance, piece), **done})

    async def tell_done(self, utterance: Utterance) -> None:
        await self._tell(
            "session.done",
            {
                "utterance_index": utterance.index,
                "total_sentences": utterance.pieces,
                "characters": utterance.speech.report(utterance.sent).characters,
                "milliseconds": utterance.milliseconds(utterance.sent),
                "usage": usage(utterance.speech.info),
                "finish_reason": utterance.finish_reason,
                **({"failed": True} if utterance.failed else {}),
            },
        )

    async def tell_warning(self, utterance: Utterance, text: str) -> None:
        await self._tell("warning", {"utterance_index": utterance.index, "message": text})

    async def tell_failure(self, error: Exception, utterance: Utterance | None = None) -> None:
        body = failure(error, self._id, self._settings.retry_after, _FIELDS).body()
        if utterance is not None:
            body = {**body, "utterance_index": utterance.index, "partial_audio": utterance.sent > 0}
        await self._tell("error", body)

    async def _tell(self, kind: str, values: Mapping[str, Any]) -> None:
        await self.send_message({"type": kind, **values})


def _place(utterance: Utterance, piece: Piece) -> dict[str, int]:
    return {"utterance_index": utterance.index, "sentence_index": piece.index}
