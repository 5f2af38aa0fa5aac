"""Servers whose speeches do not end by themselves, so that a test decides when each ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from voice_clone_client import Client

from tests.support.servers.server_metrics import wait_until_quiet
from tests.support.waiting import WAIT
from voice_clone_server.triton_server import MODELS, TritonServer

# Without the encoders, whose processes cost most of a start: for speeches with a ready embedding.
SPEECH_ALONE = ["--model-control-mode=explicit", "--load-model=qwen3_tts", "--load-model=speaker_cache"]
STOPPING = "Signal (15) received"  # in the server's log
SMALL = 60  # frames; the shipped clip has 65


@contextmanager
def endless(
    checkpoint: Path,
    folder: Path,
    models: Path | Sequence[Path] = MODELS,
    options: Sequence[str] = (),
    **environment: str,
) -> Iterator[TritonServer]:
    """A server with such a checkpoint; at the end it must stop with nothing in flight."""
    server = TritonServer(
        checkpoint,
        folder / "voices",
        models=models,
        log=folder / "log",
        options=options,
        environment=environment,
    )
    with server:
        yield server
        wait_until_quiet(server, WAIT)
        with Client(server.url, model="qwen3_tts") as client:
            speech = client.speak("Good morning.", speaker_embedding=np.ones(64, np.float32), max_frames=3, seed=0)
            assert list(speech)[-1].final
        status = server.stop()
    reported = (folder / "log").read_text()
    assert status == 0, f"the server ended with {status}; a request may never have been released:\n{reported[-4000:]}"
    assert "(version 1) has" not in reported, "a request was not released"
    assert "terminate called" not in reported.rpartition(STOPPING)[2], "the process of a model crashed at its end"


def repository_with(folder: Path, model: str, setting: str, value: str) -> Path:
    """Our models, one of them with another default of a setting."""
    shutil.copytree(MODELS, folder)
    config = folder / model / "config.pbtxt"
    before, key, after = config.read_text().partition(f'"{setting}" value {{ string_value: "')
    assert key
    config.write_text(before + key + value + after[after.index('"') :])
    return folder
