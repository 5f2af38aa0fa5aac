"""Speeches of any family on a server, checked for what holds of each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from voice_clone_client import Client

from tests.support.families.bare import Bare, Spoken
from tests.support.families.trials import MUTE, TEXT, TRIALS, Way, merged

Samples = NDArray[np.float32]
SEED = 2
WAYS = [(name, way) for name, trial in TRIALS.items() for way in trial.ways]
IDS = [f"{name}-{number}-{way.mode}" for name, trial in TRIALS.items() for number, way in enumerate(trial.ways)]


def speak(client: Client, family: str, voice: str | None = None, **asked: Any) -> tuple[Samples, dict[str, Any]]:
    """Samples and the last info of a speech; what is asked for comes on top of what the family's trial asks for."""
    order = merged(TRIALS[family].asked, asked)
    chunks = list(client.speak(order.pop("text", TEXT), model=family, voice=voice, **{"seed": SEED, **order}))
    info = dict(chunks[-1].info or {})
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert len({chunk.sample_rate for chunk in chunks}) == 1
    return np.concatenate([chunk.samples for chunk in chunks]), info


def expected(bare: Bare, voice: Any, **asked: Any) -> Spoken:
    """The same by the bare stages, in a resolved voice, in one of the checkpoint's, or in any."""
    return bare.speak(TEXT, voice, **{"seed": SEED, **merged(TRIALS[bare.card.name].asked, asked)})


def of_voice(bare: Bare, way: Way, clip: bytes, transcript: str) -> Any:
    """The voice of a way, for the bare stages."""
    if way.voice is None or way.voice in TRIALS[bare.card.name].presets:
        return way.voice
    return bare.voice(clip, None if way.voice == MUTE else transcript)
