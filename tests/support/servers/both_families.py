"""A server of Qwen3-TTS and Fish Speech with two voices, and the next one, which gets them as a crash leaves them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from voice_clone_client import Client

from tests.support.servers.running import SETTINGS, running
from voice_clone_server.triton_server import TritonServer

FAMILIES = ("qwen3_tts", "fish_speech")
TEXT, VOICE, MUTE = "Good morning.", "Ada", "Mute"
FRAMES = 24

Spoken = dict[str, tuple[NDArray[np.float32], int, dict[str, Any]]]  # samples, rate and info by family


@dataclass(frozen=True)
class Next:
    """The next server.

    Attributes:
        spoken: the first speech of `VOICE` in each family.
        extractions: made until then.
    """

    server: TritonServer
    spoken: Spoken
    extractions: int


@contextmanager
def next_of(first: TritonServer, checkpoints: Sequence[Path], folder: Path) -> Iterator[Next]:
    """A server with what lies on the disk while the first still runs, as a SIGKILL would leave it."""
    assert first.voices is not None
    shutil.copytree(first.voices, folder / "voices")
    with running(checkpoints, folder, **SETTINGS) as server, Client(server.url) as client:
        spoken = {}
        for family in FAMILIES:
            speech = client.speak(TEXT, voice=VOICE, model=family, seed=2, max_frames=FRAMES)
            samples, rate = speech.read()
            spoken[family] = samples, rate, dict(speech.info or {})
        yield Next(server, spoken, client.stats()["extractions"])
