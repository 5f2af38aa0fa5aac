"""A process that forks speaker caches and lets them be killed. Run by test_speaker_crash.

Reads jobs from standard input, one JSON a line: {"directory", "dsn", "log", "kill_at", "seed", "operations"}. For each
it forks a child that works on the directory, or on the database of `dsn`, writes to `log` what it begins and what was
acknowledged, and kills itself with SIGKILL just before its `kill_at`-th step on the file system, or its `kill_at`-th
statement of a change (never, if that is 0). Answers the child's process id
at once, and the number of its steps, or -1 if it was killed, when it has ended.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import psycopg

from tests.support.doubles.fakes import FakeEncoder, Voices, clip
from voice_clone.errors import SpeakerNotFound
from voice_clone.speakers.disk.files import Files

NAMES = ("Ada", "Bob", "Cid")
TWO = ("qwen3_tts", "voxtral")  # families that serve any clip


class Steps:
    """Counts steps, and kills its process at one of them."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at = kill_at
        self.steps = 0
        self._lock = threading.Lock()

    def _step(self) -> None:
        with self._lock:
            self.steps += 1
            if self.steps == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


class KillingStatements(Steps):
    """Counts the statements of changes: before each, and after the last one, the commit."""

    def install(self) -> None:
        execute = psycopg.Connection.execute

        def counted(connection: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
            idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            if query == "BEGIN" or not idle:
                self._step()
            found = execute(connection, query, *args, **kwargs)
            if query == "COMMIT":
                self._step()
            return found

        psycopg.Connection.execute = counted  # type: ignore[assignment, method-assign]


class KillingFiles(Files, Steps):
    """Counts the steps on files: before each operation, in the middle of each write."""

    def write(self, path: Path, data: bytes) -> None:
        self._step()
        path.write_bytes(data[: len(data) // 2])
        self._step()
        path.unlink()
        super().write(path, data)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)
        self._step()


@lru_cache(maxsize=64)
def bundle(seed: int, families: tuple[str, ...] = ("qwen3_tts",)) -> bytes:
    """The export of another server on which all names are registered, each with the clip `seed`."""
    with tempfile.TemporaryDirectory() as folder:
        source = Voices(Path(folder), FakeEncoder(), defaults=families)
        for name in NAMES:
            source.upload(name, seed)
        exported = source.call("export").artifacts
        source.cache.close()
    assert exported is not None
    return exported


def scripted(step: int) -> tuple[str, str, int]:
    """Upload, prepare, replace, delete, in an order that covers them all."""
    return [
        ("upload", "Ada", 1), ("prepare", "Ada", 0), ("upload", "Ada", 2), ("force", "Ada", 0),
        ("upload", "Bob", 3), ("delete", "Ada", 0), ("upload", "Ada", 4), ("import", "", 5), ("import", "", 6),
    ][step]  # fmt: skip


def drawn(rng: random.Random) -> tuple[str, str, int]:
    """Any operation on any name."""
    operation = rng.choices(["upload", "prepare", "force", "delete", "import"], [6, 2, 2, 3, 2])[0]
    return operation, rng.choice(NAMES), rng.randrange(8)


def do(voices: Voices, operation: str, name: str, seed: int) -> dict[str, Any]:
    """One operation; what was acknowledged."""
    try:
        if operation == "import":
            speakers = voices.call("import", {"replace": True}, audio=bundle(seed, TWO)).result["speakers"]
            return {"imported": {each["name"]: each["generation"] for each in speakers}, "seed": seed}
        if operation == "upload":
            return {"generation": voices.upload(name, seed, replace=True)["generation"], "seed": seed}
        if operation == "delete":
            return {"deleted": voices.call("delete", name=name).result["generation"]}
        return {"generation": voices.call("prepare", {"force": operation == "force"}, name=name).result["generation"]}
    except SpeakerNotFound:
        return {"missing": True}


def work(job: dict[str, Any]) -> int:
    """The work of the child. Returns: the number of its steps."""
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    files = KillingFiles(job["kill_at"])
    counted: Steps = files
    if job["dsn"] is not None:
        counted = statements = KillingStatements(job["kill_at"])
        statements.install()
    voices = Voices(Path(job["directory"]), FakeEncoder(), files, job["dsn"], defaults=TWO)
    rng = random.Random(job["seed"])
    for step in range(job["operations"]):
        operation, name, seed = drawn(rng) if job["seed"] else scripted(step)
        os.write(log, json.dumps({"begin": operation, "name": name, "seed": seed}).encode() + b"\n")
        os.write(log, json.dumps({"name": name, **do(voices, operation, name, seed)}).encode() + b"\n")
    voices.cache.close()
    return counted.steps


def main() -> None:
    """Serve jobs until standard input ends."""
    for seed in range(8):
        clip(seed)
        bundle(seed, TWO)
    for line in sys.stdin:
        job = json.loads(line)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, str(work(job)).encode())
            os._exit(0)
        os.close(write)
        _answer(pid)
        _, status = os.waitpid(pid, 0)
        steps = os.read(read, 20)
        os.close(read)
        _answer(int(steps) if os.WIFEXITED(status) and status == 0 else -1)


def _answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
