"""Even loudness: one fixed gain for a voice and a family, so that its speech has the loudness that is asked for.

The first speech of a voice waits until the voice is measured, unless the gateway measures new voices. The server keeps
the figure with the voice, and says it with each later speech; that of a clip is kept here, in memory. A voice that is
replaced has another digest, so it is measured again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from voice_clone_client import AsyncClient, Chunk, VoiceCloneError
from voice_clone_client.long_text.speaker import Speech
from voice_clone_sound.loudness import gain_of, kept_by, loudness_of, measured, voice_of

from ..http.errors import HTTPFailure
from ..services import Services

MOST_AHEAD = 16  # new voices that are measured or wait for it; the first listener of a further one waits
_MOST_FIGURES = 10_000

log = logging.getLogger(__name__)


class Loudness:
    """Knows how loud voices speak."""

    def __init__(self) -> None:
        self._figures = OrderedDict[tuple[Any, ...], asyncio.Task[float | None]]()  # LUFS; None: too short or silent
        self._ahead = set[asyncio.Task[None]]()
        self._one = asyncio.Lock()  # new voices are measured one after the other

    def expect(self, services: Services, client: AsyncClient, voice: str) -> None:
        """Measure a new voice with the default model, if this gateway is to: its first listener does not wait then.
        Where `MOST_AHEAD` wait already, it does.
        """
        if services.settings.measure_voices and len(self._ahead) < MOST_AHEAD:
            task = asyncio.create_task(self._measure_ahead(services, client, voice))
            self._ahead.add(task)
            task.add_done_callback(self._ahead.discard)

    async def _measure_ahead(self, services: Services, client: AsyncClient, voice: str) -> None:
        try:
            async with self._one, services.after_speech.turn():
                await _measured(client, {"model": await services.families.choose(None), "voice": voice})
        except (VoiceCloneError, HTTPFailure) as error:  # its first listener waits
            log.info("a new voice could not be measured: %s", error)
        except Exception:
            log.exception("a new voice could not be measured")

    async def close(self) -> None:
        """Measure no further voices ahead."""
        for task in self._ahead:
            task.cancel()
        await asyncio.gather(*self._ahead, return_exceptions=True)

    def levelled(
        self, speech: Speech, client: AsyncClient, arguments: Mapping[str, Any], target: float | None
    ) -> Speech:
        """A speech with this loudness."""
        if target is None:
            return speech

        return _Levelled(speech, lambda info: self.gain(client, arguments, info, target))

    async def gain(
        self, client: AsyncClient, arguments: Mapping[str, Any], info: Mapping[str, Any], target: float
    ) -> np.float32:
        """The factor of the samples of a speech; `info` is the server's on it, the others are as of `levelled`."""
        return gain_of(await self._figure(client, arguments, info), target)

    async def _figure(self, client: AsyncClient, arguments: Mapping[str, Any], info: Mapping[str, Any]) -> float | None:
        if (known := info.get("loudness")) is not None:
            return float(known)
        voice = voice_of(arguments)
        digest = info.get("voice_digest") or (client.owner, await asyncio.to_thread(_fingerprint, voice))
        key = (arguments["model"], info.get("mode"), voice.get("style"), digest)
        task = self._figures.get(key)
        if task is None:
            task = self._figures[key] = asyncio.create_task(_measured(client, voice))
            task.add_done_callback(partial(self._settle, key, kept=arguments.get("cache") is not False))
        self._figures.move_to_end(key)
        return await asyncio.shield(task)  # others wait for it, too

    def _settle(self, key: tuple[Any, ...], task: asyncio.Task[float | None], *, kept: bool) -> None:
        if task.cancelled() or task.exception() is not None or not kept:
            self._figures.pop(key, None)
        while len(self._figures) > _MOST_FIGURES:
            self._figures.popitem(last=False)


class _Levelled:
    """A speech with a gain. Its voice is measured at once, as the speech before it may still be sent."""

    def __init__(self, speech: Speech, find: Callable[[Mapping[str, Any]], Awaitable[np.float32]]) -> None:
        self._speech = speech
        self._find = find
        self._gain: np.float32 | None = None
        self._first: asyncio.Task[Chunk] | None = asyncio.create_task(self._next())
        self._first.add_done_callback(lambda first: first.cancelled() or first.exception())  # it may have no reader

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if self._first is None:
            return await self._next()
        first, self._first = self._first, None
        return await first

    async def _next(self) -> Chunk:
        chunk = await anext(self._speech)
        if self._gain is None:
            self._gain = await self._find(self._speech.info or {})
        return replace(chunk, samples=chunk.samples * self._gain)

    @property
    def info(self) -> Mapping[str, Any] | None:
        return self._speech.info

    def close(self) -> None:
        if self._first is not None:
            self._first.cancel()
        self._speech.close()


async def _measured(client: AsyncClient, voice: Mapping[str, Any]) -> float | None:
    """How loud a voice speaks. The server keeps the figure, if it can."""
    spoken = await measured(client, voice)
    figure = await asyncio.to_thread(loudness_of, spoken.parts, spoken.rate)
    if (kept := kept_by(spoken, voice, figure)) is not None:
        with suppress(VoiceCloneError):  # of an older server, or of a voice that was replaced meanwhile
            await client.keep_loudness(**kept)
    return figure


def _fingerprint(voice: Mapping[str, Any]) -> bytes:
    """Stands for what a voice is made of."""
    made = hashlib.sha256()
    for name, value in sorted(voice.items()):
        made.update(f"{name}\0".encode())
        made.update(value if isinstance(value, bytes) else repr(value).encode())
    return made.digest()
