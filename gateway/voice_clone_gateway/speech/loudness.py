"""Even loudness: one fixed gain for a voice and a family, so that its speech has the loudness that is asked for.

The first speech of a voice waits until the voice is measured; later ones use that figure. It is kept in memory only:
each gateway measures the same. A voice that is replaced has another digest, so it is measured again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from voice_clone_client import AsyncClient, Chunk
from voice_clone_client.long_text.speaker import Speech
from voice_clone_sound.loudness import MOST_SECONDS, SEED, TEXTS, gain_of, loudness_of, voice_of

_MOST_FIGURES = 10_000


class Loudness:
    """Knows how loud voices speak."""

    def __init__(self) -> None:
        self._figures = OrderedDict[tuple[Any, ...], asyncio.Task[float | None]]()  # LUFS; None: too short or silent

    def levelled(
        self, speech: Speech, client: AsyncClient, arguments: Mapping[str, Any], target: float | None
    ) -> Speech:
        """A speech with this loudness.

        Args:
            client: that speaks.
            arguments: of its `speak`.
            target: LUFS; None changes nothing.
        """
        if target is None:
            return speech

        async def find(info: Mapping[str, Any]) -> np.float32:
            return gain_of(await self._figure(client, arguments, info), target)

        return _Levelled(speech, find)

    async def _figure(self, client: AsyncClient, arguments: Mapping[str, Any], info: Mapping[str, Any]) -> float | None:
        voice = voice_of(arguments)
        digest = info.get("voice_digest") or (client.owner, await asyncio.to_thread(_fingerprint, voice))
        key = (arguments["model"], info.get("mode"), digest)
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
    """How loud a voice speaks; as `voice_clone_sound.loudness.measured`."""
    spoken = await asyncio.gather(*(_spoken(client, text, voice) for text in TEXTS))  # at the same time
    parts = [chunk.samples for chunks in spoken for chunk in chunks]
    return await asyncio.to_thread(loudness_of, parts, spoken[0][0].sample_rate)


async def _spoken(client: AsyncClient, text: str, voice: Mapping[str, Any]) -> list[Chunk]:
    speech = client.speak(text, **voice, seed=SEED)
    chunks, seconds = list[Chunk](), 0.0
    try:
        async for chunk in speech:
            chunks.append(chunk)
            seconds += len(chunk.samples) / chunk.sample_rate
            if seconds > MOST_SECONDS:
                break
    finally:
        speech.close()
    return chunks


def _fingerprint(voice: Mapping[str, Any]) -> bytes:
    """Stands for what a voice is made of."""
    made = hashlib.sha256()
    for name, value in sorted(voice.items()):
        made.update(f"{name}\0".encode())
        made.update(value if isinstance(value, bytes) else repr(value).encode())
    return made.digest()
