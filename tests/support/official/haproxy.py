"""HAProxy with the configuration of tools/kubernetes, in front of servers of the loopback interface."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from voice_clone_server import guard
from voice_clone_server.triton_server import ROOT, TritonServer, free_ports

CONFIGURATION = ROOT / "tools" / "kubernetes" / "base" / "haproxy.cfg"


def is_installed() -> bool:
    """Whether there is a HAProxy."""
    return shutil.which("haproxy") is not None


class HAProxy:
    """A running HAProxy; a context manager.

    Args:
        servers: that it balances; the names are s0, s1, ...
        folder: for its configuration, log and socket.
        affinity: whether a voice has a home; False: calls go to the servers in turn.
    """

    def __init__(self, servers: Sequence[TritonServer], folder: Path, affinity: bool = True) -> None:
        self._folder = folder
        [port] = free_ports(1)
        self.url = f"127.0.0.1:{port}"
        lines = [
            f"server s{number} 127.0.0.1:{server.grpc_port} port {server.http_port}"
            for number, server in enumerate(servers)
        ]
        text = CONFIGURATION.read_text(encoding="utf-8")
        text, replaced = re.subn(
            r"( +)server-template .*", lambda found: "\n".join(found[1] + line for line in lines), text
        )
        text, bound = re.subn(r"bind :8001", f"bind {self.url}", text)
        assert (replaced, bound) == (1, 1)
        text = text.replace("log stdout format raw daemon notice", f"stats socket {folder}/admin level admin")
        if not affinity:
            text = re.sub(r" +(hash-type|hash-balance-factor) .*\n", "", text).replace(
                "balance hdr(x-voice-affinity)", "balance roundrobin"
            )
        self._configuration = folder / "haproxy.cfg"
        self._configuration.write_text(text, encoding="utf-8")

    def __enter__(self) -> HAProxy:
        with (self._folder / "haproxy.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["haproxy", "-db", "-f", self._configuration], stdout=log, stderr=log, env=guard.marked(os.environ)
            )
        until = time.monotonic() + 60.0
        while "s0" not in self.states():
            assert self._process.poll() is None and time.monotonic() < until, (self._folder / "haproxy.log").read_text()
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)

    def tell(self, command: str) -> str:
        """The answer to a command of its runtime interface."""
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.connect(f"{self._folder}/admin")
            except OSError:
                return ""
            line.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: line.recv(1 << 16), b"")).decode()

    def drain(self, server: int) -> None:
        """Send it no new calls, as Kubernetes does when it takes a server off the lists of addresses."""
        self.tell(f"set server servers/s{server} state drain")

    def resume(self, server: int) -> None:
        """It gets calls again when it is ready."""
        self.tell(f"set server servers/s{server} state ready")

    def states(self) -> dict[str, tuple[str, int]]:
        """Of each server: its state, and its running calls."""
        rows = [line.split(",") for line in self.tell("show stat").splitlines() if line.startswith("servers,s")]
        return {row[1]: (row[17], int(row[4])) for row in rows}
