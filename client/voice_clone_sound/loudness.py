"""How loud a voice speaks: two texts, spoken with a seed of their own, are measured by ITU-R BS.1770.

As the texts always have the same samples, all who measure find the same. The server keeps the figure of a registered
voice, and says it with each speech.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from voice_clone_client.aio import AsyncClient
from voice_clone_client.backends import each
from voice_clone_client.client import Client
from voice_clone_client.errors import Unsupported
from voice_clone_client.fields import SOURCES

TEXTS = (
    "The sun was low when we came back to the old house, and nobody said a word. Who would have thought of that?",
    "In the evening we sat by the fire and talked about the journey. The road had been long, but the weather was kind.",
)
"""One of them alone is up to 0.6 LU from a voice's other speech."""
SEED = 1770
MOST_SECONDS = 12.0
"""Of a text; a model may miss its end."""
_MOST_GAIN = 20.0  # dB, up or down: what needs more is hardly speech
_VOICE = ("model", *SOURCES, "style", "reference_text", "x_vector_only", "cache", "deadline")


class Measured(NamedTuple):
    """What was spoken to be measured."""

    parts: list[NDArray[np.float32]]
    rate: int
    """Hz."""
    info: Mapping[str, Any]
    """The server's."""


def voice_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a speech on which its voice depends, or how it may be computed."""
    return {name: arguments[name] for name in _VOICE if arguments.get(name) is not None}


async def measured(client: AsyncClient | Client, voice: Mapping[str, Any]) -> Measured:
    """The speech by which the loudness of a voice is measured.

    Args:
        client: that speaks; with a blocking one the coroutine never waits.
        voice: see `voice_of`.
    """
    speeches = [client.speak(text, **voice, seed=SEED) for text in TEXTS]  # side by side
    try:
        parts, rate = list[NDArray[np.float32]](), 0
        for speech in speeches:
            seconds = 0.0
            async for chunk in each(speech):
                parts.append(chunk.samples)
                rate = chunk.sample_rate
                seconds += len(chunk.samples) / rate
                if seconds > MOST_SECONDS:
                    break
        return Measured(parts, rate, speeches[0].info or {})
    finally:
        for speech in speeches:
            speech.close()


def kept_by(measured: Measured, voice: Mapping[str, Any], figure: float | None) -> dict[str, Any] | None:
    """The arguments of `keep_loudness` of a client; None where there is nothing to keep."""
    info = measured.info
    changed = "instructions" in info or "directions" in info  # it is another sound than that of the clip
    if figure is None or changed or "generation" not in info or voice.get("cache") is False:
        return None
    return {"name": info["voice"], "loudness": figure, "model": voice["model"]} | {
        name: info[name] for name in ("generation", "mode", "style") if name in info
    }


def loudness_of(parts: Sequence[NDArray[np.float32]], rate: int) -> float | None:
    """The integrated loudness of samples in LUFS (EBU R 128); None of a sound under 0.4 s, or of silence.

    Raises:
        Unsupported: the package is missing that measures it.
    """
    meter = LoudnessMeter(rate)
    meter.add(np.concatenate(parts))
    return meter.figure


class LoudnessMeter:
    """Measures the integrated loudness of a sound that comes in pieces.

    Args:
        rate: Hz.

    Raises:
        Unsupported: the package is missing that measures it.
    """

    def __init__(self, rate: int) -> None:
        try:
            from pyebur128 import MeasurementMode, R128State
        except ImportError:  # there is none for Python 3.13
            raise Unsupported("`loudness` needs a further package: pip install pyebur128") from None
        self._state = R128State(1, rate, MeasurementMode.MODE_I)

    def add(self, samples: NDArray[np.float32]) -> None:
        """The next samples [n]."""
        self._state.add_frames(samples.astype(np.float64), len(samples))

    @property
    def figure(self) -> float | None:
        from pyebur128 import get_loudness_global

        figure: float = get_loudness_global(self._state)
        return figure if np.isfinite(figure) else None


def gain_of(figure: float | None, target: float) -> np.float32:
    """The factor from a loudness to another, both in LUFS; 1 for a sound that has none."""
    decibels = 0.0 if figure is None else target - figure
    return np.float32(10 ** (min(max(decibels, -_MOST_GAIN), _MOST_GAIN) / 20))
