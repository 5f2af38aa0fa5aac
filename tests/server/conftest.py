"""A real tritonserver with the tiny checkpoint, shared by the tests of this folder.

A graceful stop takes Triton about 5 s. So where it is not what is tested, and nothing that it logs is looked at, the
servers of the tests are killed at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from voice_clone_client import Client

from tests.conftest import CheckpointFactory
from tools.triton_server import TritonServer


@pytest.fixture(scope="session")
def server(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A running server with an empty voice folder."""
    folder = tmp_path_factory.mktemp("server")
    with TritonServer(checkpoint_folder("tiny", 0), folder / "voices", log=folder / "log") as server:
        yield server
        assert server.ready(), "a test made the server unready"
        server.kill()


@pytest.fixture
def client(server: TritonServer) -> Iterator[Client]:
    """A client of that server."""
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="session")
def voice(server: TritonServer, reference_clip: bytes, reference_text: str) -> str:
    """Name of a registered voice with a transcript."""
    with Client(server.url) as client:
        client.upload("Harbour", reference_clip, reference_text=reference_text, wait=True)
    return "Harbour"


@pytest.fixture
def private_server(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> Iterator[TritonServer]:
    """A server of the test's own, not started yet."""
    server = TritonServer(checkpoint_folder("tiny", 0), tmp_path / "voices", log=tmp_path / "log")
    yield server
    server.kill()
    server.stop()
