"""Another user of the machine finds nothing of a voice: not while it is there, after a delete, a crash, a new start."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest
import soundfile
from platformdirs import user_cache_path

from tests.support.families.factories import CheckpointFactory
from tests.support.waiting import until
from voice_clone_server.guard import VARIABLE, temporary_folder
from voice_clone_server.triton_server import ROOT, free_ports

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]

NOBODY = 65534
LOADING = 200.0
TEMPORARY = tempfile.gettempdir()
PLACES = ("/dev/shm", f"{TEMPORARY}/voice[-_]clone*", str(user_cache_path("voice-clone")), str(ROOT / "core*"))
SHOWN, CLOSED = ("cmdline", "status"), ("environ", "maps", "mem", "fd/*", "cwd/core*")  # of a process
# The files that have one of the words, and what the system lets this user open.
SEARCH = """
words=$1; places=$2; shown=$3; closed=$4
find $places -xdev -type f -readable -exec grep -lsaF -e "$words" {} +
grep -lsaF -e "$words" /dev/null $shown
for file in $closed; do head -c 1 "$file" >/dev/null 2>&1 && echo "$file"; done
true
"""


class Machine:
    """What tools/serve has started, and all that another user finds of it.

    Args:
        words: that nobody may find.
    """

    def __init__(self, checkpoint: Path, folder: Path, words: Iterable[str]) -> None:
        self._words = "\n".join(words)
        self._folder, self._log = folder, folder / "log"
        self._log.touch(0o600)
        self.ports = [str(port) for port in free_ports(4)]
        kinds = ("--grpc-port", "--http-port", "--metrics-port", "--gateway")
        self._command = [sys.executable, "-m", "tools.run", "voice_clone_server.serve", "--checkpoint", str(checkpoint)]
        self._command += [word for pair in zip(kinds, self.ports, strict=True) for word in pair]
        self._command += ["--voices", str(folder / "voices"), "--gateway-api-keys-file", str(folder / "keys")]
        self._command += ["--gateway-audit-log", str(folder / "audit")]

    def start(self) -> None:
        before = self._log.read_text().count("\nReady")
        with self._log.open("ab") as log:
            self._tool = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log, umask=0o022)
        until(lambda: self._log.read_text().count("\nReady") > before or self._tool.poll() is not None, LOADING)
        assert self._tool.poll() is None, self._log.read_text()

    def processes(self) -> list[psutil.Process]:
        """Those of the tool and all that it has started, its guard first."""
        mark, found = f"{self._tool.pid}-", []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_guard = any(word.startswith(mark) for word in each.cmdline())
                if is_guard or each == self._tool or each.environ().get(VARIABLE, "").startswith(mark):
                    found.append(each)
        return [psutil.Process(self._tool.pid), *found]

    def kill(self) -> None:
        """End all processes at once: none tidies up behind another."""
        everything = self.processes()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in everything:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
        self._tool.wait()
        psutil.wait_procs(everything)

    def found(self, by_its_own: bool = False) -> set[str]:
        """The files in which another user, or the server's own, finds a word, and what it can open of processes."""
        running = [] if self._tool.poll() is not None else [f"/proc/{each.pid}" for each in self.processes()]
        shown = [f"{process}/{name}" for process in running for name in SHOWN]
        closed = [f"{process}/{name}" for process in running for name in CLOSED]
        user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        if by_its_own:
            closed, user = [], {}
        lists = (" ".join(map(str, each)) for each in ((*PLACES, self._folder), shown, closed))
        command = ["sh", "-c", SEARCH, "sh", self._words, *lists]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **user)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.splitlines())


def clip(word: str) -> bytes:
    """A clip of noise with a word in its samples."""
    samples = np.random.default_rng(1).integers(-9000, 9000, 16000).astype("<i2")
    samples[8000 : 8000 + len(word) // 2] = np.frombuffer(word.encode(), "<i2")
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, format="WAV", subtype="PCM_16")
    return file.getvalue()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all users may enter; pytest's may be entered by their own alone."""
    with temporary_folder() as folder:
        folder.chmod(0o755)
        yield folder


def test_another_user_finds_nothing(checkpoint_folder: CheckpointFactory, folder: Path) -> None:
    name, sound, text, consent, key = words = [secrets.token_hex(10) for _ in range(5)]
    machine = Machine(checkpoint_folder("tiny", 0), folder, words)
    readable = folder / "readable"
    readable.write_text(text)
    known = {str(readable)}
    (folder / "keys").touch(0o600)
    (folder / "keys").write_text(f"{key} speak,manage name=alice owner")
    url, headers = f"http://127.0.0.1:{machine.ports[3]}", {"Authorization": f"Bearer {key}"}

    def live(http: httpx2.Client) -> None:
        form = {"name": name, "consent": consent, "reference_text": text}
        http.post("/v1/audio/voices", data=form, files={"audio_sample": clip(sound)}).raise_for_status()
        order = {"input": text, "max_frames": 2, "allow_partial": True, "response_format": "pcm"}
        http.post("/v1/audio/speech", json={**order, "voice": name}).raise_for_status()
        http.get("/v1/audio/bundle").raise_for_status()

    with httpx2.Client(base_url=url, headers=headers, timeout=LOADING, trust_env=False) as http:
        machine.start()
        try:
            live(http)
            held = machine.found(by_its_own=True)
            for place in ("/voices/", "/audit", "/keys", "/dev/shm/"):
                assert any(place in file for file in held), f"the search finds nothing in {place}"
            assert machine.found() == known
            http.delete(f"/v1/audio/voices/{name}").raise_for_status()
            assert machine.found() == known
            live(http)
        finally:
            machine.kill()
        # The memory of the dead server may be here still; the next start of any server on this machine removes it.
        assert machine.found() == known
        machine.start()
        try:
            assert machine.found() == known
            assert not any(file.startswith("/dev/shm/") for file in machine.found(by_its_own=True))
        finally:
            machine.kill()
