"""The command `voice-clone-gateway` as a process, and a look at its metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import httpx2

from voice_clone_server.guard import marked
from voice_clone_server.triton_server import free_ports

WAIT = 60.0


class Gateway:
    """A running gateway; a context manager.

    Args:
        triton: host:port of the Triton server.
        log: file for its output.
        options: further options of the command.
        environment: further environment variables.
    """

    def __init__(self, triton: str, log: Path, *options: str, **environment: str) -> None:
        [port] = free_ports(1)
        self.url = f"{'https' if '--tls-certificate' in options else 'http'}://127.0.0.1:{port}"
        self.log = log
        command = [sys.executable, "-m", "voice_clone_gateway", "--triton", triton, "--port", str(port), *options]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env=marked({**os.environ, **environment}),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # as tools/serve does: the kernel shares the cores between sessions
            )

    def __enter__(self) -> Gateway:
        deadline = time.monotonic() + WAIT
        while True:
            try:
                self._metrics()
                return self
            except httpx2.TransportError:
                assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            assert self.process.wait(WAIT) in (0, -15)
        finally:
            self.process.kill()
            self.process.wait()

    def metric(self, name: str) -> float:
        """A figure of /metrics without labels, or the sum over all of them."""
        lines = self._metrics().splitlines()
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == f"voice_clone_gateway_{name}"]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def _metrics(self) -> str:
        # It has no certificate, and to load others is slow.
        return httpx2.get(f"{self.url}/metrics", timeout=WAIT, verify=False).text
