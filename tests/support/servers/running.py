"""Running servers, which their tests must leave ready."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import Client, VoiceNotFound

from tests.support.same_audio import is_same_audio
from tools.triton_server import MODELS, TritonServer

SETTINGS = {"VOICE_CLONE_WARM_UP_SECONDS": "0.1", "VOICE_CLONE_MAX_STREAMS": "8"}
"""Of a server that starts sooner than by default."""


@contextmanager
def running(
    checkpoints: Path | Sequence[Path], folder: Path, models: Path | Sequence[Path] = MODELS, /, **environment: str
) -> Iterator[TritonServer]:
    """A running server with its voices in `folder`, and its log; variables of its environment by name."""
    voices, log = folder / "voices", folder / "log"
    with TritonServer(checkpoints, voices, models=models, log=log, environment=environment) as server:
        yield server
        assert server.ready(), "a test made the server unready"
        server.kill()


@contextmanager
def client_of_two_voices(server: TritonServer, family: str, clip: bytes, transcript: str) -> Iterator[Client]:
    """A client of a family, and for all families the voices Ada, with the transcript of the clip, and Mute, without."""
    with Client(server.url, model=family) as client, Client(server.url) as of_all:
        of_all.upload("Ada", clip, reference_text=transcript, wait=True)
        of_all.upload("Mute", clip, wait=True)
        yield client


@contextmanager
def restored_and_erased(
    server: TritonServer,
    client: Client,
    checkpoint: Path,
    folder: Path,
    heard: Callable[..., tuple[NDArray[np.float32], dict[str, Any]]],
) -> Iterator[Client]:
    """A client of another server with the voices of `server`, where Ada sounds the same, is deleted, and is then gone.

    Args:
        client: of a family of `server`.
        checkpoint: of that family.
        folder: of the other server.
        heard: the samples and the info of a speech of a client in a voice.
    """
    expected, _ = heard(client, voice="Ada")
    assert server.voices is not None
    shutil.copytree(server.voices, folder / "voices")
    with running(checkpoint, folder, **SETTINGS) as other, Client(other.url) as of_other:
        samples, info = heard(of_other, voice="Ada")
        assert info["cache"] == "restored" and is_same_audio(samples, expected)
        assert of_other.stats()["extractions"] == 0
        of_other.delete("Ada")
        with pytest.raises(VoiceNotFound):
            heard(of_other, voice="Ada")
        yield of_other
