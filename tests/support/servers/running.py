"""Running servers, which their tests must leave ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from voice_clone_server.triton_server import MODELS, TritonServer

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
