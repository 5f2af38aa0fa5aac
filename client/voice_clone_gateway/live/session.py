"""A session of a WebSocket client, from its first message to its end; `websocket` describes the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect

from ..accounts import audited, audited_result, finish_reason, usage
from ..http.errors import HTTPFailure, failure
from ..http.keys import Key
from ..long_text.long_speech import LongSpeech, Plan
from ..long_text.written_speech import WrittenSpeech
from ..synthesis import check_options, long_plan, order, speaker
from .messages import Cancel, Close, InputDone, InputFlush, InputText, StreamConfig, read
from .output import Output, Utterance

log = logging.getLogger(__name__)


class _Idle(Exception):
    """The session was idle for too long."""


class Session:
    """One connection: a task that receives, and one for each utterance, which runs after the one before it."""

    def __init__(self, websocket: WebSocket, key: Key) -> None:
        self._websocket = websocket
        self._key = key
        self._app = websocket.app
        self._client = websocket.app.state.clients.of(key)
        self._settings = websocket.app.state.settings
        self._id: str = websocket.state.request_id
        self._config: StreamConfig | None = None
        self._utterances: deque[Utterance] = deque()  # those that are not over, in their order
        self._open: Utterance | None = None  # the one whose text is incomplete
        self._count = 0
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._active = self._loop.time()  # time of the latest activity

    async def run(self) -> None:
        """Serve the connection until its end."""
        receiving: asyncio.Task[Any] | None = None
        try:
            while True:
                receiving = asyncio.create_task(self._websocket.receive())
                message = await self._receive(receiving)
                if message["type"] == "websocket.disconnect" or not await self._follow(message):
                    return
        except WebSocketDisconnect:
            pass
        except _Idle:
            text = f"the session was idle for {self._settings.session_idle_seconds:g} s, so it is closed"
            with contextlib.suppress(WebSocketDisconnect):
                await self._fail(HTTPFailure(408, text, "idle_timeout"))
                await self._websocket.close(1008)
        finally:
            if receiving is not None:
                receiving.cancel()
            await self._stop()

    async def _receive(self, receiving: asyncio.Task[Any]) -> Mapping[str, Any]:
        while not receiving.done():
            if self._utterances and self._utterances[0].complete.is_set():
                self._active = self._loop.time()  # the client only receives
            left = self._active + self._settings.session_idle_seconds - self._loop.time()
            if left <= 0:
                raise _Idle
            await asyncio.wait((receiving,), timeout=left)
        self._active = self._loop.time()
        message: Mapping[str, Any] = receiving.result()
        return message

    async def _follow(self, message: Mapping[str, Any]) -> bool:
        """Execute a message; False if it ends the session."""
        try:
            text = message.get("text")
            if text is None:
                raise HTTPFailure(400, "messages are JSON in text frames, not binary ones", "invalid_argument")
            command = await read(text)
            if isinstance(command, StreamConfig):
                self._configure(command)
            elif isinstance(command, InputText):
                self._write(command.text)
            elif isinstance(command, InputFlush):
                if self._open is not None and not self._open.failed:
                    self._open.speech.flush()
            elif isinstance(command, InputDone):
                self._end()
            elif isinstance(command, Cancel):
                await self._cancel(command.played_ms)
            elif isinstance(command, Close):
                await self._stop()
                await self._websocket.close(1000)
                return False
        except WebSocketDisconnect:
            raise
        except Exception as error:
            await self._fail(error)
        return True

    def _configure(self, config: StreamConfig) -> None:
        check_options(self._settings, config)
        self._config = config

    def _write(self, text: str) -> None:
        if self._open is None and text.strip():
            self._open = self._begin()
        if self._open is not None and not self._open.failed:
            self._key.characters.take(len(text))
            self._open.speech.write(text)

    def _end(self) -> None:
        utterance, self._open = self._open or self._begin(), None
        utterance.complete.set()
        if not utterance.failed:
            utterance.speech.end()

    def _begin(self) -> Utterance:
        """A new utterance, spoken after those before it."""
        config, settings = self._config, self._settings
        if config is None:
            raise HTTPFailure(400, "session.config must be the first message", "invalid_argument", param="type")
        if len(self._utterances) >= settings.session_utterances:
            message = f"{len(self._utterances)} utterances wait already; wait for a session.done"
            raise HTTPFailure(429, message, "too_many_utterances")
        plan = long_plan(
            settings,
            granularity=config.split_granularity,
            sentence_pause=config.sentence_pause_ms / 1000,
            paragraph_pause=config.paragraph_pause_ms / 1000,
        )
        utterance = Utterance(self._count, config, self._speech(config, plan), self._loop.time())
        before = self._utterances[-1].task if self._utterances else None
        self._count += 1
        self._utterances.append(utterance)
        utterance.task = asyncio.create_task(self._speak(utterance, before))
        utterance.task.add_done_callback(lambda _: self._finish(utterance))
        return utterance

    def _speech(self, config: StreamConfig, plan: Plan) -> LongSpeech:
        if config.streaming_mode == "token_level":
            flush, renew = config.flush_after_ms, config.renew_after_ms
            return WrittenSpeech(self._client, plan, flush and flush / 1000, renew and renew / 1000)
        return LongSpeech(speaker(self._app, self._client, hold=not config.stream_audio), plan)

    async def _cancel(self, played_ms: float | None) -> None:
        """Stop all utterances, and report how far each was spoken."""
        ended = [utterance for utterance in await self._stop() if not utterance.over]
        self._open = None
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
            if report.partial is not None:
                report_fields["partial"] = {
                    "sentence_text": report.partial.text,
                    "start": report.partial.start,
                    "end": report.partial.end,
                    "milliseconds": utterance.milliseconds(report.partial_seconds),
                }
            await self.send_message("session.cancelled", report_fields)
        if not ended:
            nothing = {"utterance_index": None, "sentences": 0, "characters": 0, "milliseconds": 0}
            await self.send_message("session.cancelled", nothing)

    async def _stop(self) -> list[Utterance]:
        """End all utterances and their audio at once; returns them."""
        stopped = list(self._utterances)
        tasks = [utterance.task for utterance in stopped if utterance.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        return stopped

    async def _speak(self, utterance: Utterance, before: asyncio.Task[None] | None) -> None:
        """Speak an utterance after the one before it."""
        try:
            if before is not None:
                await asyncio.wait((before,))
            try:
                await self._say(utterance)
            except WebSocketDisconnect:
                raise
            except Exception as error:
                utterance.failed, utterance.finish_reason = True, finish_reason(error)
                utterance.speech.close()
                self._app.state.metrics.aborted.labels(getattr(error, "slug", "refused")).inc()
                await self._fail(error, utterance_index=utterance.index, partial_audio=utterance.sent > 0)
                await utterance.complete.wait()
            await self.send_message(
                "session.done",
                {
                    "utterance_index": utterance.index,
                    "total_sentences": utterance.sentences,
                    "characters": utterance.speech.report(utterance.sent).characters,
                    "milliseconds": utterance.milliseconds(utterance.sent),
                    "usage": usage(utterance.speech.info),
                    "finish_reason": utterance.finish_reason,
                    **({"failed": True} if utterance.failed else {}),
                },
            )
            utterance.over = True
        except WebSocketDisconnect:
            log.info("session %s: the client disconnected after %.2f s of audio", self._id, utterance.sent)

    def _finish(self, utterance: Utterance) -> None:
        """Release the resources of an utterance, however its task ended, and even if it never began."""
        utterance.speech.close()
        self._utterances.remove(utterance)
        metrics = self._app.state.metrics
        metrics.audio_seconds.inc(utterance.sent / utterance.config.speed)
        if utterance.first_audio is not None:
            metrics.first_audio.observe(utterance.first_audio - utterance.began)

    async def _say(self, utterance: Utterance) -> None:
        """Speak an utterance, and write it into the audit log."""
        asked = audited(utterance.config)
        with self._app.state.audit.act(self._key, self._id, "speech", **asked) as entry:
            try:
                with self._key.gate.pass_through(), self._app.state.gate.pass_through():
                    await self._send_speech(utterance)
            finally:
                seconds = utterance.sent / utterance.config.speed
                entry |= {"characters": utterance.speech.length, **audited_result(utterance.speech.info, seconds)}

    async def _send_speech(self, utterance: Utterance) -> None:
        with self._app.state.metrics.live.track_inprogress():
            ordered = await order(self._app, self._client, utterance.config)
            for warning in ordered.warnings:
                await self.send_message("warning", {"utterance_index": utterance.index, "message": warning})
            utterance.speech.begin(ordered.arguments)
            output = Output(self, utterance)
            async for chunk in utterance.speech:
                await output.add(chunk)
            await output.finish()
            utterance.finish_reason = (utterance.speech.info or {}).get("finish_reason")

    async def send_message(self, kind: str, values: Mapping[str, Any]) -> None:
        """Send a message."""
        await self._send({"type": "websocket.send", "text": json.dumps({"type": kind, **values})})

    async def send_audio(self, data: bytes) -> None:
        """Send a binary frame."""
        await self._send({"type": "websocket.send", "bytes": data})

    async def _fail(self, error: Exception, **more: Any) -> None:
        body = failure(error, self._id, self._settings.retry_after).body()
        await self.send_message("error", {**body, **more})

    async def _send(self, message: dict[str, Any]) -> None:
        """Send; waits until the client has read most of the earlier messages, which slows the speech down."""
        async with self._sending:
            try:
                await self._websocket.send(message)
            except RuntimeError:  # starlette's error if the connection was closed meanwhile
                raise WebSocketDisconnect from None
        self._active = self._loop.time()
