"""SIGKILL at every step: acknowledged changes survive, any other is there as a whole or not at all."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.doubles.crash_worker import NAMES, TWO
from tests.support.doubles.fakes import RATE, FakeEncoder, Voices, clip
from tests.support.official.postgres import await_writers, empty
from voice_clone.audio import decode
from voice_clone.errors import SpeakerNotFound
from voice_clone.speakers.encoders import pack_artifacts

ROOT = Path(__file__).parents[3]
STORES = ("files", "postgresql")  # all tests of this file run on both
SCRIPTED = 9  # operations of the script


class Worker:
    """The process that forks caches to be killed."""

    def __init__(self, directory: Path, dsn: str | None) -> None:
        self._directory = directory
        self._dsn = dsn
        self._runs = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.doubles.crash_worker"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, kill_at: int = 0, seed: int = 0, operations: int = SCRIPTED, kill_after: float | None = None) -> int:
        """One life of a cache, then the check of what it left. The steps it did, or -1 if it was killed."""
        self._runs += 1
        directory, log = self._directory / str(self._runs), self._directory / f"{self._runs}.log"
        job = {
            "directory": str(directory),
            "dsn": self._dsn,
            "log": str(log),
            "kill_at": kill_at,
            "seed": seed,
            "operations": operations,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(pid, signal.SIGKILL)
        steps = int(self._process.stdout.readline())
        lines = log.read_text().splitlines() if log.exists() else []
        if self._dsn is not None:
            await_writers(self._dsn)
        check(directory, self._dsn, [json.loads(line) for line in lines if line.endswith("}")])
        if self._dsn is None:
            shutil.rmtree(directory)
        else:
            empty(self._dsn)
        return steps

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@pytest.fixture
def worker(tmp_path: Path, new_dsn: Callable[[], str | None]) -> Iterator[Worker]:
    made = Worker(tmp_path, new_dsn())
    yield made
    made.close()


def check(directory: Path, dsn: str | None, log: list[dict[str, Any]]) -> None:
    """Restart on what was left and compare with what was acknowledged."""
    acknowledged: dict[str, tuple[int, int] | None] = {}  # generation and clip
    pending: dict[str, Any] | None = None
    for line in log:
        if "begin" in line:
            pending = line
            continue
        pending = None
        name = line["name"]
        for imported, generation in line.get("imported", {}).items():
            acknowledged[imported] = (generation, line["seed"])
        if "deleted" in line:
            acknowledged[name] = None
        elif "generation" in line:
            held = acknowledged.get(name)
            seed = line["seed"] if "seed" in line else (held or (0, 0))[1]
            acknowledged[name] = (line["generation"], seed)
    voices = Voices(directory, dsn=dsn)
    try:
        left = {path.parent.name for path in directory.rglob("*") if path.is_file() and path.parent != directory}
        assert left <= {"voices"}, "a temporary file or something in quarantine"
        assert not list(directory.rglob(".temporary-*"))
        imports = pending is not None and pending["begin"] == "import"
        doubtful = [] if pending is None else NAMES if imports else [pending["name"]]
        made = {
            name: _check_one(voices, name, acknowledged.get(name), pending if name in doubtful else None)
            for name in {*acknowledged, *doubtful}
        }
        assert not imports or len(set(made.values())) == 1, "an import is there in part"
        assert voices.call("list").result["count"] == len(voices.on_disk())
        newest = max((held[0] for held in acknowledged.values() if held), default=0)
        assert voices.upload("New", 0)["generation"] > newest
    finally:
        voices.cache.close()


def _check_one(voices: Voices, name: str, held: tuple[int, int] | None, in_doubt: dict[str, Any] | None) -> bool:
    """The voice must be as acknowledged, or as the operation in doubt would have made it; whether it is the latter."""
    extractions = voices.encoder.extractions
    try:
        replies = {family: voices.resolve(name, family) for family in TWO}
    except SpeakerNotFound:
        assert held is None or (in_doubt is not None and in_doubt["begin"] == "delete"), "an acknowledged voice is lost"
        return held is not None
    [generation] = {reply.result["generation"] for reply in replies.values()}
    found = {family: reply.artifacts for family, reply in replies.items()}
    as_acknowledged = held is not None and generation == held[0] and found == made_of(held[1])
    if as_acknowledged:
        assert voices.encoder.extractions == extractions, "its artifacts were lost"
        return False
    assert in_doubt is not None, "not what was acknowledged"
    assert held is None or generation > held[0]
    if in_doubt["begin"] in ("upload", "import"):
        assert found == made_of(in_doubt["seed"])
    else:
        assert in_doubt["begin"] == "force" and held is not None and found == made_of(held[1])
    return True


def made_of(seed: int) -> dict[str, bytes]:
    waveform = decode(clip(seed)).waveform
    return {
        family: pack_artifacts(FakeEncoder().encode(family, waveform, RATE, "x_vector").artifacts) for family in TWO
    }


def test_killed_at_steps_of_upload_prepare_replace_delete_and_import(
    worker: Worker, store: str
) -> None:  # B13, B3, C8, C10
    _killed_at_steps(worker, every=3 if store == "files" else 6)


@pytest.mark.long
def test_killed_at_every_step_of_all(worker: Worker) -> None:
    _killed_at_steps(worker, every=1)


def _killed_at_steps(worker: Worker, every: int) -> None:
    steps = worker.run()
    assert steps > 40
    for kill_at in range(1, steps + 1, every):
        assert worker.run(kill_at=kill_at) == -1, "it was not killed: the steps are not what they were"


def test_killed_at_random_steps_and_moments(worker: Worker, store: str) -> None:  # B13, B10
    _random_cycles(worker, 20 if store == "files" else 8)


@pytest.mark.long
def test_killed_many_times(worker: Worker) -> None:  # B13, B10
    _random_cycles(worker, 400)


def _random_cycles(worker: Worker, cycles: int) -> None:
    rng = random.Random(cycles)
    for cycle in range(cycles):
        seed = rng.randrange(1, 1 << 30)
        if cycle % 2:
            assert worker.run(seed=seed, operations=10_000, kill_after=rng.uniform(0.0, 0.15)) == -1
        else:
            worker.run(kill_at=rng.randrange(1, 150), seed=seed, operations=30)
