"""The blocking client waits in the thread that calls it: in an event loop, too, until Ctrl-C, and with few imports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import voice_clone_client as vc

from tests.support.doubles.triton_double import Server, chunk
from tests.support.waiting import until

WAYS: dict[str, Callable[[Any], Any]] = {
    "speak": lambda client: client.speak("Hi.", voice="ada"),
    "speak_long": lambda client: client.speak_long("Hi.", voice="ada"),
    "speak_stream": lambda client: client.speak_stream(["Hi."], voice="ada"),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_speaks_inside_a_running_loop_as_the_other_client(triton: Server, way: str) -> None:
    async def run() -> None:
        async with vc.AsyncClient(triton.url) as client:
            awaited, rate = await WAYS[way](client).read()
        with vc.Client(triton.url) as blocking:
            samples, same_rate = WAYS[way](blocking).read()
        assert len(samples) and rate == same_rate
        np.testing.assert_array_equal(samples, awaited)

    asyncio.run(run())


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_ends_the_wait_for_a_chunk(triton: Server, way: str) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    def play(context: Any) -> Iterator[Any]:
        context.add_callback(cancelled.set)
        yield chunk(0)
        begun.set()
        cancelled.wait(20)

    triton.play = play
    with vc.Client(triton.url) as client, WAYS[way](client) as spoken:
        next(spoken)

        begun.wait(20)
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            next(spoken)
    until(cancelled.is_set)


@pytest.mark.parametrize("way", WAYS)
def test_a_speech_that_is_forgotten_is_stopped(triton: Server, way: str) -> None:
    events = list[str]()

    def play(context: Any) -> Iterator[Any]:
        context.add_callback(lambda: events.append("over"))
        yield chunk(0)
        with contextlib.suppress(AssertionError):
            until(lambda: "over" in events, 5)
        events.append("all was spoken")

    triton.play = play
    with vc.Client(triton.url) as client:
        spoken = WAYS[way](client)
        next(spoken)
        del spoken
        until(lambda: bool(events))
    assert events[0] == "over"


def test_what_is_rarely_needed_is_imported_late() -> None:
    late = ("regex", "safetensors", "av", "soundfile")
    program = f"import sys, voice_clone_client; print(*[name for name in {late} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "\n"
    assert vc.LongSpeech.__name__ in vc.__all__
    with pytest.raises(AttributeError, match="Speeches"):
        _ = vc.Speeches
