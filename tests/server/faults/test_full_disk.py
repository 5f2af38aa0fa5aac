"""The disk of the voices is full or has no inodes left: nothing acknowledged is lost; it works again by itself."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load
from tritonclient.utils import InferenceServerException

from tests.server.faults.test_crash import same
from tests.support.doubles.fakes import clip
from tests.support.servers.cache_calls import Cache
from tests.support.servers.family_models import make_repository
from tests.support.servers.server_metrics import series
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough

OPTIONS = {"room": "size=3m,nr_inodes=4000", "inodes": "size=64m,nr_inodes=40"}
NAMES = [f"voice {number}" for number in range(12)]
SEEDS = 40
FILLING = "filling-"


@pytest.fixture(params=OPTIONS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small file system of the test's own, which runs out of this."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", OPTIONS[request.param], "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Take all room, or all inodes, that are left."""
    with contextlib.suppress(OSError):
        for number in range(10_000):
            with (disk / f"{FILLING}{number}").open("wb", buffering=0) as file:
                if os.statvfs(disk).f_ffree > 100:  # there are inodes: the room is what is short
                    while True:
                        file.write(bytes(512))
    with pytest.raises(OSError) as failure:
        (disk / "probe").write_bytes(bytes(8192))
    assert failure.value.errno == errno.ENOSPC
    (disk / "probe").unlink(missing_ok=True)


def free(disk: Path) -> None:
    """Give back what `fill` took."""
    for path in disk.glob(f"{FILLING}*"):
        path.unlink()


class Caller:
    """Uploads, makes again and deletes voices; knows what was acknowledged.

    Attributes:
        known: of each name the seed of its clip; None: deleted.
        refused: operations that were.
    """

    def __init__(self, server: TritonServer) -> None:
        self._cache = Cache(server)
        self._random = random.Random(7)
        self.known: dict[str, int | None] = {}
        self.refused = 0

    def work(self, server: TritonServer, operations: int) -> None:
        """Random operations, each acknowledged or refused as overloaded."""
        self._cache.close()
        self._cache = Cache(server)
        for _ in range(operations):
            name, seed = self._random.choice(NAMES), self._random.randrange(SEEDS)
            operation = self._random.choice(["upload", "upload", "prepare", "delete"])
            if operation != "upload" and self.known.get(name) is None:
                continue
            fields = {
                "upload": {"audio": clip(seed), "options": {"wait": seed % 2 == 0, "replace": True}},
                "prepare": {"options": {"force": True}},
            }
            try:
                self._cache(operation, name=name, **fields.get(operation, {}))
            except InferenceServerException as error:
                assert "overloaded: the voice store is full" in str(error), f"{operation}: {error}"
                assert operation != "delete", "a voice cannot be deleted on a full disk"
                self.refused += 1
            else:
                if operation != "prepare":
                    self.known[name] = seed if operation == "upload" else None

    def check(self) -> None:
        """Every voice is as acknowledged, from memory and from the disk."""
        listed = {each["name"] for each in self._cache("list")[0]["speakers"]}
        assert listed == {name for name, seed in self.known.items() if seed is not None}
        for name, seed in self.known.items():
            for options in ({}, {"cache": False}) if seed is not None else ():
                assert same(load(self._cache("resolve", name=name, options=options)[1]), seed), name

    def close(self) -> None:
        """Close the connection."""
        self._cache.close()


@pytest.mark.parametrize("operations", [60, pytest.param(3000, marks=pytest.mark.long)])
def test_a_full_disk_loses_nothing(disk: Path, tmp_path: Path, operations: int) -> None:
    models = make_repository(tmp_path / "models", ("qwen3_tts",))

    def start() -> TritonServer:
        return TritonServer(None, disk / "voices", models=models, log=tmp_path / "log").start()

    def failures() -> float:
        return sum(value for name, _, value in series(server) if name == "speaker_cache_store_write_failures_total")

    server = start()
    caller = Caller(server)
    try:
        for number, name in enumerate(NAMES[:6]):
            Cache(server)("upload", name=name, audio=clip(number), options={"wait": True})
            caller.known[name] = number
        fill(disk)
        caller.work(server, operations)
        caller.check()
        assert caller.refused > 5 and server.ready()
        until(lambda: failures() >= caller.refused)
        server.kill()
        fill(disk)
        server = start()  # it needs no room
        caller.work(server, operations)
        caller.check()
        free(disk)
        refused = caller.refused
        caller.work(server, operations)
        assert caller.refused == refused, "there is room again"
        caller.check()
        until(lambda: not [path for path in (disk / "voices" / "voices").iterdir() if "temporary" in path.name])
        assert not list((disk / "voices" / "quarantine").iterdir())
    finally:
        caller.close()
        server.kill()
        server.stop()
