"""A session of a WebSocket client, from its first message to its end: what all protocols share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect
from voice_clone_client import InvalidArgument
from voice_clone_client.long_text.long_speech import AsyncLongSpeech
from voice_clone_client.long_text.speaker import Speech
from voice_clone_client.long_text.text import SentenceChunk
from voice_clone_text.dictionary import Scoped
from voice_clone_text.pieces import Mark, Style
from voice_clone_words.words import Word

from ..http.auth import admit
from ..http.errors import HTTPFailure, failure
from ..http.json_bounds import parse_message
from ..http.keys import Key
from ..http.origins import check_origin
from ..http.presented_keys import chosen_subprotocol
from ..services import services_of
from ..speech.audited import audited, audited_result, finish_reason
from ..speech.dictionaries import Chosen
from ..speech.planned_text import PlannedText
from ..speech.segments import is_planned, settings_of, styled
from ..speech.spoken_words import SpokenWords
from ..speech.streaming_text import StreamingText
from ..speech.synthesis import Order, long_plan, long_speech, order
from .config import StreamConfig
from .output import Output
from .utterance import Piece, Utterance

log = logging.getLogger(__name__)

_Turn = Callable[[Utterance, "asyncio.Task[None] | None"], Coroutine[Any, Any, None]]


class Session(ABC):
    """One connection: a task that receives, and one for each utterance.

    A protocol is a subclass: `follow` executes the client's messages by `write`, `flush`, `end` and `stop`, and the
    methods `tell_...` say what happens in messages of the protocol.
    """

    def __init__(self, websocket: WebSocket, key: Key, idle_seconds: float | None = None) -> None:
        self._websocket = websocket
        self._key = key
        self._services = services_of(websocket)
        self._client = self._services.clients.of(key)
        self._settings = self._services.settings
        self._id: str = websocket.state.request_id
        setting: float = self._settings.session_idle_seconds
        self._idle_seconds = setting if idle_seconds is None else min(setting, idle_seconds)
        self._kept = 0  # bytes of the account
        self._utterances: list[Utterance] = []  # those that are not over, in their order
        self._open: dict[str, Utterance] = {}  # those whose text is incomplete, by lane
        self._count = 0
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._active = self._loop.time()  # time of the latest activity

    @abstractmethod
    async def follow(self, message: Any) -> None:
        """Execute a message, which is a JSON value of any kind. What it raises goes to `tell_failure`."""

    async def greet(self) -> None:  # noqa: B027 # most protocols begin in silence
        """The session begins."""

    @abstractmethod
    async def tell_audio(self, utterance: Utterance, piece: Piece, data: bytes) -> None:
        """Audio, in the configured format."""

    @abstractmethod
    async def tell_done(self, utterance: Utterance) -> None:
        """All audio of an utterance was sent, or it has failed; its text is complete."""

    @abstractmethod
    async def tell_failure(self, error: Exception, utterance: Utterance | None = None) -> None:
        """A message cannot be followed, or an utterance has failed."""

    async def tell_start(self, utterance: Utterance, piece: Piece) -> None:  # noqa: B027 # not in all protocols
        """The audio of a piece follows."""

    async def tell_words(self, utterance: Utterance, words: Sequence[Word]) -> None:  # noqa: B027 # not in all protocols
        """The next words and their times, in seconds of the audio that is sent; if the configuration wants them."""

    async def tell_mark(self, utterance: Utterance, piece: Piece, mark: Mark) -> None:  # noqa: B027 # not in all
        """A mark of the text is in a piece, or before it; behind the last one at the end of the text."""

    async def tell_end(  # noqa: B027 # not in all protocols
        self, utterance: Utterance, piece: Piece, info: Mapping[str, Any]
    ) -> None:
        """All audio of a piece was sent; `info` is the server's on it."""

    async def tell_warning(self, utterance: Utterance, text: str) -> None:  # noqa: B027 # not in all protocols
        """What of the configuration was ignored or replaced."""

    async def run(self, first: Mapping[str, Any] | None = None) -> None:
        """Serve the connection until its end; `first` is a message that was received before."""
        receiving: asyncio.Task[Any] | None = None
        try:
            await self.greet()
            if first is not None:
                await self.receive(first)
            while not self._closed.done():
                receiving = asyncio.create_task(self._websocket.receive())
                if not await self._wait(receiving):
                    break
                message = receiving.result()
                if message["type"] == "websocket.disconnect":
                    break
                await self.receive(message)
        except WebSocketDisconnect:
            pass
        finally:
            if receiving is not None:
                receiving.cancel()
            await self.stop()

    async def receive(self, message: Mapping[str, Any]) -> None:
        """Execute a message of the ASGI server.

        Raises:
            WebSocketDisconnect: the client has left.
        """
        try:
            await self.follow(await parse_message(message))
        except WebSocketDisconnect:
            raise
        except Exception as error:
            await self.tell_failure(error)

    async def _wait(self, receiving: asyncio.Task[Any]) -> bool:
        """Wait for the next message; false if the session ends before it."""
        while not receiving.done():
            if any(utterance.complete.is_set() for utterance in self._utterances):
                self._active = self._loop.time()  # the client only receives
            left = self._active + self._idle_seconds - self._loop.time()
            if left <= 0:
                text = f"the session was idle for {self._idle_seconds:g} s, so it is closed"
                await self.tell_failure(HTTPFailure(408, text, "idle_timeout"))
                await self.close(1008)
            if self._closed.done():
                return False
            await asyncio.wait((receiving, self._closed), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        self._active = self._loop.time()
        return True

    def keep(self, latest: StreamConfig | None) -> None:
        """Hold in the account the texts and configurations that are in use; `latest` is that of the next utterance.

        Raises:
            Full: there is no room for them.
        """
        configs = {id(each): each for each in (latest, *(utterance.config for utterance in self._utterances)) if each}
        size = sum(each.size for each in configs.values()) + sum(each.speech.length for each in self._utterances)
        self._websocket.state.held.add(size - self._kept)
        self._kept = size

    async def write(self, text: str, config: StreamConfig, lane: str = "") -> None:
        """Add to the open utterance of a lane; the first visible character begins one. A refused text begins none.

        Raises:
            HTTPFailure, VoiceCloneError: a limit is reached, the text is too long, or there is no such dictionary.
        """
        utterance = self._open.get(lane)
        if utterance is None and text.strip():
            chosen = await self._services.dictionaries.chosen(self._services, self._client, config)
            self._open[lane] = self._begin(config, lane, self._speak, text, chosen)
        elif utterance is not None and not utterance.failed:
            self._add_text(utterance, text)
        self.keep(config)

    def flush(self, lane: str = "") -> None:
        """Speak the open utterance of a lane as far as it was written."""
        utterance = self._open.get(lane)
        if utterance is not None and not utterance.failed:
            utterance.speech.flush()

    def end(self, config: StreamConfig, lane: str = "") -> None:
        """The text of the open utterance is complete. Without one, an empty utterance ends in its turn.

        Raises:
            HTTPFailure: a limit is reached.
        """
        utterance = self._open.pop(lane, None) or self._begin(config, lane, self._pass)
        utterance.complete.set()
        if not utterance.failed:
            utterance.speech.end()

    async def stop(self, chosen: Callable[[Utterance], bool] = lambda _: True) -> list[Utterance]:
        """End the chosen utterances, or all, and their audio at once; returns them."""
        stopped = [utterance for utterance in self._utterances if chosen(utterance)]
        for lane in [lane for lane, utterance in self._open.items() if utterance in stopped]:
            del self._open[lane]
        tasks = [utterance.task for utterance in stopped if utterance.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        return stopped

    async def close(self, code: int, reason: str = "") -> None:
        """Close the connection; `run` then ends."""
        if not self._closed.done():
            self._closed.set_result(None)
            async with self._sending:
                await self._send_now({"type": "websocket.close", "code": code, "reason": reason})

    async def send_message(self, message: Mapping[str, Any]) -> None:
        """Send JSON; waits until the client has read most of the earlier messages, which slows the speech down."""
        await self._send({"type": "websocket.send", "text": json.dumps(message)})

    async def send_binary(self, data: bytes) -> None:
        """Send a binary frame; waits as `send_message`."""
        await self._send({"type": "websocket.send", "bytes": data})

    async def _send(self, message: dict[str, Any]) -> None:
        async with self._sending:
            if self._closed.done():
                raise WebSocketDisconnect
            await self._send_now(message)
        self._active = self._loop.time()

    async def _send_now(self, message: dict[str, Any]) -> None:
        try:
            await self._websocket.send(message)
        except RuntimeError:  # starlette's error if the connection was closed meanwhile
            raise WebSocketDisconnect from None

    def _begin(
        self, config: StreamConfig, lane: str, turn: _Turn, text: str = "", chosen: Chosen | None = None
    ) -> Utterance:
        """A new utterance, whose turn comes after those of its lane.

        Raises:
            HTTPFailure, VoiceCloneError: too many wait; or as `write`.
        """
        if len(self._utterances) >= self._settings.session_utterances:
            message = f"{len(self._utterances)} utterances wait already; wait until one is spoken"
            raise HTTPFailure(429, message, "too_many_utterances")
        chosen = chosen or Chosen()
        speech = self._speech(config, text, chosen.dictionaries)
        if isinstance(speech, PlannedText):
            config = config.model_copy(update={"speed": 1.0})  # it has the tempo
        utterance = Utterance(self._count, lane, config, speech, self._loop.time(), warnings=chosen.warnings)
        if config.timestamp_granularities:
            times = self._client.word_times("", config.language, keep=self._websocket.state.held.add_spare)
            utterance.words = SpokenWords(times, config.speed)
        self._add_text(utterance, text)
        before = next((each.task for each in reversed(self._utterances) if each.lane == lane), None)
        self._count += 1
        self._utterances.append(utterance)
        utterance.task = asyncio.create_task(turn(utterance, before))
        utterance.task.add_done_callback(lambda _: self._finish(utterance))
        return utterance

    def _speech(
        self, config: StreamConfig, text: str, dictionaries: Sequence[Scoped]
    ) -> AsyncLongSpeech | StreamingText | PlannedText:
        """A new speech, whose text begins like this."""
        if not dictionaries and not is_planned(config, text, final=False):
            return self._written(config)
        flush = config.flush_after_ms
        return PlannedText(
            settings_of(config, Style(language=config.language), dictionaries),
            partial(self._written, config.model_copy(update={"flush_after_ms": None})),
            rate=config.speed,
            most=self._settings.max_input_characters,
            charge=self._key.characters.take,
            flush_after=flush and flush / 1000,
        )

    def _written(self, config: StreamConfig) -> AsyncLongSpeech | StreamingText:
        if config.streaming_mode == "token_level":
            flush, renew = config.flush_after_ms, config.renew_after_ms
            plan = long_plan(self._services, config.model)
            return StreamingText(self._client, plan, flush and flush / 1000, renew and renew / 1000)
        return long_speech(
            self._services,
            self._client,
            config.model,
            self._websocket.state.held.add,
            hold=not config.stream_audio,
            granularity=config.split_granularity,
            sentence_pause=config.sentence_pause_ms / 1000,
            paragraph_pause=config.paragraph_pause_ms / 1000,
        )

    def _add_text(self, utterance: Utterance, text: str) -> None:
        """Add to a text, as far as the key may still speak; of a planned one, what is spoken counts."""
        if not isinstance(utterance.speech, PlannedText):
            self._key.characters.take(len(text))
        utterance.speech.write(text)
        if utterance.words is not None:
            utterance.words.write(text)

    async def _pass(self, utterance: Utterance, before: asyncio.Task[None] | None) -> None:
        """The turn of an utterance without text."""
        with contextlib.suppress(WebSocketDisconnect):
            if before is not None:
                await asyncio.wait((before,))
            await self.tell_done(utterance)
            utterance.over = True

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
                self._services.metrics.count_failed(
                    error, utterance.first_audio is not None or utterance.speech.info is not None
                )
                await self.tell_failure(error, utterance)
                await utterance.complete.wait()
            await self.tell_done(utterance)
            utterance.over = True
        except WebSocketDisconnect:
            log.info("session %s: the client disconnected after %.2f s of audio", self._id, utterance.sent)

    def _finish(self, utterance: Utterance) -> None:
        """Release the resources of an utterance, however its task ended, and even if it never began."""
        utterance.speech.close()
        if utterance.words is not None:
            utterance.words.close()
        self._utterances.remove(utterance)
        metrics = self._services.metrics
        metrics.audio_seconds.inc(utterance.sent / utterance.config.speed)
        if utterance.first_audio is not None:
            metrics.first_audio.observe(utterance.first_audio - utterance.began)

    async def _say(self, utterance: Utterance) -> None:
        """Speak an utterance, and write it into the audit log."""
        asked = audited(self._key, utterance.config)
        with self._services.audit.act(self._key, self._id, "speech", **asked) as entry:
            try:
                with self._key.gate.pass_through(), self._services.gate.pass_through():
                    await self._send_speech(utterance)
            finally:
                seconds = utterance.sent / utterance.config.speed
                self._services.metrics.count_mark(self._key, utterance.speech.info)
                entry |= {"characters": utterance.speech.length, **audited_result(utterance.speech.info, seconds)}

    async def _send_speech(self, utterance: Utterance) -> None:
        with self._services.metrics.live.track_inprogress(), self._websocket.state.held.part() as hold:
            config, services, sent = utterance.config, self._services, set[str]()
            orders = dict[tuple[str | None, ...], Order]()  # those that are spoken alike share a clip

            async def warn(warnings: Sequence[str]) -> None:
                for warning in warnings:
                    if warning not in sent:
                        sent.add(warning)
                        await self.tell_warning(utterance, warning)

            async def speak(style: Style, speech: AsyncLongSpeech | StreamingText) -> Speech:
                options, ignored = styled(config, style)
                alike = options.voice_name, options.style, options.language
                ordered = orders.get(alike) or await order(services, self._client, options, hold)
                orders[alike] = ordered
                await warn([*ignored, *ordered.warnings])
                speech.begin(ordered.arguments)
                return services.loudness.levelled(speech, self._client, ordered.arguments, ordered.loudness)

            family = await services.families.choose(config.model)
            output = Output(self, utterance, partial(services.signing.statement, family))
            speech = utterance.speech
            await warn(self._allowed(utterance.warnings))
            if isinstance(speech, PlannedText):
                speech.begin(speak)
                async for planned in speech:
                    await warn(self._allowed(speech.warnings))
                    await output.add(planned)
                await warn(self._allowed(speech.warnings))
            else:
                async for chunk in await speak(Style(language=config.language), speech):
                    await output.add(cast(SentenceChunk, chunk))
            await output.finish()
            utterance.finish_reason = (utterance.speech.info or {}).get("finish_reason")

    def _allowed(self, warnings: Sequence[str]) -> Sequence[str]:
        """The warnings of a text; raises InvalidArgument on a strict gateway, which has none."""
        if warnings and self._settings.strict:
            raise InvalidArgument(f"`text`: {warnings[0]}; leave it out, this gateway is strict")
        return warnings


async def serve(websocket: WebSocket, session: Callable[[Key], Session]) -> None:
    """Serve a WebSocket with the session of its key; what that raises refuses the connection."""
    with ExitStack() as stack:
        try:
            check_origin(websocket, services_of(websocket).settings.cors_origins)
            key = admit(websocket, "speak")
            stack.enter_context(services_of(websocket).sockets.place(websocket))
            await services_of(websocket).idle_server.run_for(websocket)
            opened = session(key)
        except Exception as error:
            refusal = failure(error, websocket.state.request_id, services_of(websocket).settings.retry_after)
            await websocket.send_denial_response(refusal.response(websocket.scope))
            return
        await websocket.accept(chosen_subprotocol(websocket.scope))
        await opened.run()
