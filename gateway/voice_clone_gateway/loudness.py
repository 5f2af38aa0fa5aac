"""Even loudness: one fixed gain for a voice and a family, so that its speech has the loudness that is asked for.

The first speech of a voice waits until it is measured; later ones find the figure. Nothing is kept on a disk, as all
gateways find the same. A voice that is replaced has another digest, and is measured anew.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from voice_clone_client import AsyncClient, Chunk
from voice_clone_client.long_text.speaker import Speech
from voice_clone_sound.loudness import MOST_SECONDS, SEED, TEXTS, gain_of, loudness_of, voice_of

_MOST_FIGURES = 10_000

C = TypeVar("C", bound=Chunk)


class Leveller(Protocol):
    """Sets the loudness of a speech."""

    async def __call__(self, chunk: C, info: Mapping[str, Any] | None) -> C:
        """The next chunk of the speech with its gain; `info` is the server's on it."""


class Loudness:
    """Knows how loud voices speak."""

    def __init__(self) -> None:
        self._figures = OrderedDict[tuple[Any, ...], asyncio.Task[float | None]]()  # LUFS; None: too short or silent

    def leveller(self, client: AsyncClient, arguments: Mapping[str, Any], target: float | None) -> Leveller:
        """What sets the loudness of one speech.

        Args:
            client: that speaks.
            arguments: of its `speak`.
            target: LUFS; None changes nothing.
        """
        gain: np.float32 | None = None if target is not None else np.float32(1.0)

        async def level(chunk: C, info: Mapping[str, Any] | None) -> C:
            nonlocal gain
            if gain is None:
                assert target is not None
                gain = gain_of(await self._figure(client, arguments, info or {}), target)
            return chunk if gain == 1.0 else replace(chunk, samples=chunk.samples * gain)

        return level

    def levelled(
        self, speech: Speech, client: AsyncClient, arguments: Mapping[str, Any], target: float | None
    ) -> Speech:
        """A speech with this loudness; see `leveller`."""
        return speech if target is None else _Levelled(speech, self.leveller(client, arguments, target))

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

    def __init__(self, speech: Speech, level: Leveller) -> None:
        self._speech = speech
        self._level = level
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
        return await self._level(await anext(self._speech), self._speech.info)

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
