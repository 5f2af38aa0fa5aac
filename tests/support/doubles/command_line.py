"""The command line against the protocol double, and a voice that the double answers with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import wave
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from voice_clone_client import pcm16
from voice_clone_command import cli

from tests.support.doubles.repeatable_speech import RepeatableSpeech
from tests.support.doubles.triton_double import RATE, Server, samples_of
from tests.support.waiting import until

VOICE = {
    "name": "Ada",
    "generation": 3,
    "duration": 2.5,
    "artifacts": [{"model_type": "qwen3_tts", "mode": "icl", "state": "ready"}],
}
LINE = "Ada\tgeneration 3\t2.5 s\tqwen3_tts icl ready\n"
Run = Callable[..., int]


def in_process(triton: Server) -> Run:
    """Runs `voice-clone` against the double, in this process."""
    return lambda *arguments: cli.main(["--url", triton.url, *map(str, arguments)])


def end_midway(triton: Server, server: RepeatableSpeech, number: int, after: int, *arguments: object) -> None:
    """Run `voice-clone` in a process, which gets the signal of this number with that speech."""
    begun, over = count(), threading.Event()

    def end(text: str) -> None:
        if next(begun) == after:
            process.send_signal(number)
            over.set()
        if over.is_set():
            until(lambda: process.poll() is not None)

    server.before = end
    command = [sys.executable, "-m", "voice_clone_command.cli", "--url", triton.url, *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    _, said = process.communicate()
    assert process.returncode == (128 + number if number == signal.SIGINT else -number) and said == b""
    server.before = lambda text: None


def answer(triton: Server, value: Any, artifacts: bytes = b"") -> None:
    triton.answer = lambda inputs: {"result": json.dumps(value).encode(), "artifacts": artifacts}


def pcm_of(path: Path) -> bytes:
    """The PCM of a WAV whose sizes are exactly right."""
    with wave.open(str(path)) as wav:
        assert (wav.getframerate(), wav.getnchannels(), wav.getsampwidth()) == (RATE, 1, 2)
        assert path.stat().st_size == 44 + 2 * wav.getnframes()
        return bytes(wav.readframes(wav.getnframes()))


def pcm_of_chunks(count: int) -> bytes:
    return b"".join(pcm16(samples_of(index, 1920)) for index in range(count))
