"""Even loudness: one fixed gain for a voice and a family, so that its speech has the loudness that is asked for.

The gain follows from how loud the voice speaks: two texts, spoken with a seed of their own, are measured by ITU-R
BS.1770. The first speech of a voice waits for that; later ones find the figure. As the texts always have the same
samples, all gateways find the same, and nothing is kept on a disk. A voice that is replaced has another digest, and is
measured anew.
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
from numpy.typing import NDArray
from pyebur128 import MeasurementMode, R128State, get_loudness_global
from voice_clone_client import AsyncClient, Chunk
from voice_clone_client.fields import SOURCES
from voice_clone_client.long_text.speaker import Speech

TEXTS = (
    "The sun was low when we came back to the old house, and nobody said a word. Who would have thought of that?",
    "In the evening we sat by the fire and talked about the journey. The road had been long, but the weather was kind.",
)
"""One of them alone is up to 0.6 LU from a voice's other speech."""
_SEED = 1770
_MOST_SECONDS = 12.0  # of a text; a model may miss its end
_MOST_GAIN = 20.0  # dB, up or down: what needs more is hardly speech
_MOST_FIGURES = 10_000
_VOICE = ("model", *SOURCES, "reference_text", "x_vector_only", "cache", "deadline")
"""The arguments of a speech on which its voice depends, or how it may be computed."""

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
        voice = {name: arguments[name] for name in _VOICE if arguments.get(name) is not None}
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


def gain_of(figure: float | None, target: float) -> np.float32:
    """The factor from a loudness to another, both in LUFS; 1 for a sound that has none."""
    decibels = 0.0 if figure is None else target - figure
    return np.float32(10 ** (min(max(decibels, -_MOST_GAIN), _MOST_GAIN) / 20))


def loudness_of(samples: NDArray[np.float32], rate: int) -> float | None:
    """The integrated loudness in LUFS (ITU-R BS.1770, EBU R 128); None of a sound under 0.4 s, or of silence."""
    state = R128State(1, rate, MeasurementMode.MODE_I)
    state.add_frames(samples.astype(np.float64), len(samples))
    figure: float = get_loudness_global(state)
    return figure if np.isfinite(figure) else None


async def _measured(client: AsyncClient, voice: Mapping[str, Any]) -> float | None:
    """How loud a voice speaks."""
    spoken = await asyncio.gather(*(_spoken(client, text, voice) for text in TEXTS))  # at the same time
    parts = [chunk.samples for chunks in spoken for chunk in chunks]
    return await asyncio.to_thread(loudness_of, np.concatenate(parts), spoken[0][0].sample_rate)


async def _spoken(client: AsyncClient, text: str, voice: Mapping[str, Any]) -> list[Chunk]:
    speech = client.speak(text, **voice, seed=_SEED)
    chunks, seconds = list[Chunk](), 0.0
    try:
        async for chunk in speech:
            chunks.append(chunk)
            seconds += len(chunk.samples) / chunk.sample_rate
            if seconds > _MOST_SECONDS:
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
