"""What a server's models exchange: its regions are private, gone with it, and closed to clients."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException
from voice_clone_client import Client

from tests.support.doubles.fakes import clip, together
from tests.support.servers.cache_calls import Cache
from tests.support.servers.family_models import make_repository
from tests.support.servers.server_processes import processes
from tests.support.waiting import WAIT, until
from voice_clone_server.server_memory import FOLDER, NAME
from voice_clone_server.triton_server import ROOT, TritonServer

pytestmark = pytest.mark.thorough


def made(folder: Path, name: str = "a", client_shm: bool = False) -> TritonServer:
    """A server with made-up encoders, and its voices, in a folder that all users may enter."""
    own = folder / name
    make_repository(own / "models", ("qwen3_tts",))
    return TritonServer(None, own / "voices", models=own / "models", log=own / "log", client_shm=client_shm)


def files_of(server: TritonServer) -> list[Path]:
    """What it has on the disk and in memory."""
    assert server.voices is not None
    places = [server.voices, *FOLDER.glob(f"{server.memory.prefix[:-1]}*"), server.scratch]
    inside = [file for place in places if place.is_dir() for file in place.rglob("*") if not file.is_symlink()]
    return [file for file in (*places, *inside) if not file.is_dir()]


def test_regions_are_private_from_the_first_moment(tmp_path: Path) -> None:
    seen: set[int] = set()
    ready = threading.Event()
    server = made(tmp_path)

    def watch() -> None:
        while not ready.is_set():
            for region in server.regions():
                seen.add(stat.S_IMODE(region.stat().st_mode))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        server.start()
        assert server.regions()
    finally:
        ready.set()
        watching.join()
        server.kill()
        server.stop()
    assert seen == {0o600}


# A tool with a server, which it starts as `made` does; it says so and waits.
TOOL = """
import sys
from pathlib import Path
from tests.server.faults.test_server_memory import made
with made(Path(sys.argv[1]), "killed") as server:
    print(server.memory.prefix, server.scratch, flush=True)
    sys.stdin.read()
"""


def test_what_a_server_leaves_goes_with_the_next_start_but_a_neighbour_keeps_its_own(tmp_path: Path) -> None:
    """All of it is killed at once, the tool's guard, too."""
    with made(tmp_path, "neighbour") as neighbour:
        tool = subprocess.Popen(
            [sys.executable, "-c", TOOL, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with tool:
            assert tool.stdout is not None
            prefix, scratch = tool.stdout.readline().split()
            everything = [*psutil.Process(tool.pid).children(recursive=True), psutil.Process(tool.pid)]
            for process in everything:
                process.send_signal(signal.SIGSTOP)  # none can tidy up behind another
            for process in everything:
                process.kill()
        until(lambda: not any(process.is_running() and process.status() != "zombie" for process in everything))
        left: Callable[[], list[Path]] = lambda: [*FOLDER.glob(f"{prefix[:-1]}*"), *Path("/").glob(scratch[1:])]  # noqa: E731
        assert len(left()) > 3 and prefix.startswith(NAME)
        own = set(files_of(neighbour))
        with made(tmp_path, "next") as server:
            assert left() == []
            assert set(files_of(neighbour)) == own and neighbour.ready() and server.ready()
            server.kill()
        cache = Cache(neighbour)
        cache("upload", name="Ada", audio=clip(1), options={"wait": True})
        cache.close()
        neighbour.kill()


@pytest.mark.parametrize("client_shm", [False, True])
def test_clients_register_shared_memory_only_where_they_may(tmp_path: Path, client_shm: bool) -> None:
    with made(tmp_path, client_shm=client_shm) as server, triton.InferenceServerClient(server.url) as client:
        region = server.regions()[0]
        try:
            client.register_system_shared_memory("mine", f"/{region.name}", 64, client_timeout=WAIT)
            assert client_shm
            client.unregister_system_shared_memory("mine")
        except InferenceServerException:
            assert not client_shm
        server.kill()


def test_exports_leave_no_memory_behind(tmp_path: Path) -> None:
    """However many are wanted at once, two bundles are in memory at most, and afterwards none."""
    with made(tmp_path) as server, Client(server.url) as client:
        for index in range(24):
            client.upload(f"v{index}", clip(index, 24.0, 48_000), wait=True)
        [process] = [psutil.Process(pid) for pid in processes(server) if "speaker_cache" in _command(pid)]
        size = len(client.export())
        assert size > 50e6
        before, most, done = process.memory_info(), 0, threading.Event()

        def watch() -> None:
            nonlocal most
            while not done.wait(0.05):
                most = max(most, _own(process.memory_info()))

        watching = threading.Thread(target=watch)
        watching.start()
        assert together(8, lambda _: len(client.export())) == [size] * 8
        done.set()
        watching.join()
        until(lambda: _own(process.memory_info()) < _own(before) + size / 2)
        assert most < _own(before) + 4 * size and process.memory_info().shared < before.shared + size / 2


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def _own(memory: Any) -> int:
    """Bytes that a process shares with none."""
    own: int = memory.rss - memory.shared
    return own
