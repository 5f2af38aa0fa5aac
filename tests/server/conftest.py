"""A real tritonserver with the tiny checkpoint, shared by the tests of this folder.

A graceful stop takes Triton about 5 s. So servers are killed at the end, unless a test is about the stop or its log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from voice_clone_client import Client

from tests.support.families.factories import CheckpointFactory
from tests.support.families.fish import make_fish
from tests.support.servers.both_families import MUTE, VOICE, Next, next_of
from tests.support.servers.cache_calls import Cache
from tests.support.servers.endless import SMALL, endless, repository_with
from tests.support.servers.running import SETTINGS, running
from tests.support.servers.server_logs import Logs
from voice_clone_server.families.recognition import OPTIONAL
from voice_clone_server.triton_server import MODELS, TritonServer

STARTING = 800.0  # seconds until a server is ready: the first one of a checkout compiles, and a machine may be busy


@pytest.fixture(scope="session", autouse=True)
def logs() -> Iterator[Logs]:
    """The logs of this run. What servers write after the last test of a file is found at the end of the run."""
    logs = Logs()
    start = TritonServer.start

    def noted(server: TritonServer, timeout: float = STARTING) -> TritonServer:
        logs.add(server.log)
        return start(server, timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TritonServer, "start", noted)
        yield logs
    assert not (found := logs.tracebacks()), found[0]


@pytest.fixture(scope="module", autouse=True)
def no_tracebacks(logs: Logs) -> Iterator[None]:
    """No server wrote a traceback during the tests of a file."""
    yield
    assert not (found := logs.tracebacks()), found[0]


@pytest.fixture(scope="session")
def server(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A running server, shared by all tests of a run, that can plan texts, too."""
    models = [MODELS, OPTIONAL / "text_front_end"]
    with running(checkpoint_folder("tiny", 0), tmp_path_factory.mktemp("server"), models) as server:
        yield server


@pytest.fixture(scope="session")
def endless_server(endless_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server whose speeches do not end by themselves, and whose code2wav alone takes only `SMALL` references."""
    folder = tmp_path_factory.mktemp("endless-server")
    models = repository_with(folder / "models", "qwen3_tts_code2wav", "max_chunk_frames", str(SMALL))
    with endless(endless_checkpoint, folder, models) as server:
        yield server


@pytest.fixture(scope="session")
def both_checkpoints(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One of Qwen3-TTS, one of Fish Speech."""
    return [checkpoint_folder("tiny", 0), make_fish(tmp_path_factory.mktemp("fish") / "checkpoint", dtype="bf16")]


@pytest.fixture(scope="session")
def server_of_both(
    both_checkpoints: list[Path], tmp_path_factory: pytest.TempPathFactory, reference_clip: bytes, reference_text: str
) -> Iterator[TritonServer]:
    """A server of both families, with a voice that has a transcript and one that has none."""
    with running(both_checkpoints, tmp_path_factory.mktemp("both-families"), **SETTINGS) as server:
        with Client(server.url) as client:
            client.upload(VOICE, reference_clip, reference_text=reference_text, wait=True)
            client.upload(MUTE, reference_clip, wait=True)
        yield server


@pytest.fixture(scope="session")
def next_of_both(
    server_of_both: TritonServer, both_checkpoints: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Next]:
    """The server that comes after it. Its voices are not those of other tests to count on."""
    with next_of(server_of_both, both_checkpoints, tmp_path_factory.mktemp("next-of-both")) as found:
        yield found


@pytest.fixture
def client(server: TritonServer) -> Iterator[Client]:
    """A client of that server."""
    with Client(server.url) as client:
        yield client


@pytest.fixture
def cache(server: TritonServer) -> Iterator[Cache]:
    """The speaker cache of that server, called without our client."""
    cache = Cache(server)
    yield cache
    cache.close()


@pytest.fixture(scope="session")
def voice(server: TritonServer, reference_clip: bytes, reference_text: str) -> str:
    """Name of a registered voice with a transcript."""
    with Client(server.url) as client:
        if "Harbour" not in {voice.name for voice in client.list()}:
            client.upload("Harbour", reference_clip, reference_text=reference_text, wait=True)
    return "Harbour"


@pytest.fixture
def private_server(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> Iterator[TritonServer]:
    """A server of the test's own, not started yet."""
    server = TritonServer(checkpoint_folder("tiny", 0), tmp_path / "voices", log=tmp_path / "log")
    yield server
    server.kill()
    server.stop()
