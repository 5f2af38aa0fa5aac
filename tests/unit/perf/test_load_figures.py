"""perf/load: what it calls late, and how long it goes on."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace

import pytest
from voice_clone_client import Preset

from perf.bench import load
from perf.bench.load import Load, Mix, Outcome
from perf.bench.playback import Playback

pytestmark = pytest.mark.thorough


def heard(*arrivals: float, seconds: float = 0.1) -> Outcome:
    playback = Playback(0.0)
    for now in arrivals:
        playback.add(now, seconds)
    return Outcome(playback, None, "hit")


def test_chunks_in_time() -> None:
    playback = Playback(0.0)
    playback.add(0.5, 0.0)  # without audio: no listener waits for it
    assert playback.chunks == 0
    found = load.figures("2 callers", [heard(1.0, 1.05, 1.15), heard(1.0, 1.5)], 2.0)  # the last one 0.4 s late
    assert found["chunks"] == 5 and found["in_time"] == 0.8 and found["gapless"] == 0.5
    line = dict(zip(load.COLUMNS, load.row(found), strict=True))
    assert line["chunks"] == 5 and line["in time %"] == "80.00" and line["stalled s"] == pytest.approx(0.4)


def test_no_one_heard_anything() -> None:
    found = load.figures("1 callers", [Outcome(Playback(0.0), "overloaded", None)], 2.0)
    assert found["in_time"] is None and len(load.row(found)) == len(load.COLUMNS)


class Quick(Load):
    """Its speeches take 10 ms."""

    def __init__(self) -> None:
        super().__init__(None, Mix(1.0, 1.0, 0.0, 3, 1), 0)  # type: ignore[arg-type]

    def _request(self) -> load.Speak:
        async def speak(began: float) -> Outcome:
            await asyncio.sleep(0.01)
            return heard(began)

        return speak


def test_levels_by_seconds_and_by_number() -> None:
    def outcomes(kind: str, amount: float, seconds: float | None) -> int:
        given = Namespace(seconds=seconds, requests=7)
        return len(asyncio.run(load.speak_level(Quick(), kind, amount, given)))

    assert outcomes("c", 2, None) == outcomes("r", 1000.0, None) == 7
    assert outcomes("r", 500.0, 0.1) == 50 and outcomes("r", 0.1, 1.0) == 1
    began = time.perf_counter()
    assert 3 <= outcomes("c", 3, 0.3) <= 90 and time.perf_counter() - began >= 0.3


class Presets:
    """A client that knows two voices of the checkpoint; a voice is neither uploaded nor deleted."""

    async def presets(self) -> list[Preset]:
        return [Preset("ada", "voxtral"), Preset("bob", "voxtral")]


def test_voices_of_the_checkpoint_speak_and_are_not_deleted() -> None:
    async def registered() -> list[str]:
        loaded = Load(Presets(), Mix(1.0, 1.0, 0.0, 3, 0), 0)  # type: ignore[arg-type]
        await loaded.register()
        await loaded.unregister()
        return loaded.names

    assert asyncio.run(registered()) == ["ada", "bob"]
