"""The process of the HTTP gateway that tools/serve starts, and starts again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from voice_clone_server import addresses, guard
from voice_clone_server.restarts import Restarts

PATIENCE = 60.0  # seconds for the gateway, once what it needs is there
SETTLE = 10.0  # seconds after the first start, while the server loads, until another one takes the processor
AGAIN = 0.5  # the same after a later start, in which the one that stood by begins to answer
OOM_SCORE = "300"  # where memory runs out, the kernel ends the gateway before a server with its voices


class GatewayFailed(Exception):
    """The gateway does not start, or not again; its log says why."""


class GatewayProcess:
    """The gateway. What it listens at is open for as long as this object, so callers wait while it starts again.

    Another process stands by, with all code loaded: that takes a second, and on a busy machine several.

    Args:
        options: of the command voice-clone-gateway.
        host, port: where it listens.
        restarts: how often it may be started again.
        tls: whether it listens by TLS.

    Attributes:
        process: the one that answers.
        standby: the one that stands by, if there is one.
        started: when `process` began, on the monotonic clock.

    Raises:
        GatewayFailed: it cannot listen there.
    """

    def __init__(self, options: Sequence[str], host: str, port: int, restarts: int, tls: bool = False) -> None:
        from voice_clone_gateway.listening import bound  # the image of the server has no gateway

        try:
            self._sockets = bound(host, port)
        except OSError as error:
            raise GatewayFailed(f"the gateway {error}") from None
        numbers = ",".join(str(each.fileno()) for each in self._sockets)
        self._command = [sys.executable, "-m", "voice_clone_gateway", *options, "--sockets", numbers]
        self._command += ["--standby", "true"]
        self._at, self._tls = (addresses.local(host), port), tls
        self._restarts = Restarts("the gateway", restarts)
        self.standby: subprocess.Popen[bytes] | None = self._load()
        self._settle = SETTLE
        self.process = self._start()

    def _load(self) -> subprocess.Popen[bytes]:
        """A gateway that stands by."""
        numbers = [each.fileno() for each in self._sockets]
        process = subprocess.Popen(
            self._command, start_new_session=True, env=guard.marked(), pass_fds=numbers, stdin=subprocess.PIPE
        )
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
        return process

    def _start(self) -> subprocess.Popen[bytes]:
        """Let the one that stands by serve."""
        process, self.standby = self.standby or self._load(), None
        self.started = time.monotonic()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            process.stdin.write(b"!")
            process.stdin.close()
        return process

    def keep(self, standby: bool = True) -> None:
        """Start it again if it has ended.

        Args:
            standby: whether another one is to stand by, where that does not delay the first.

        Raises:
            GatewayFailed: it has ended too often, or somebody has asked it to.
        """
        status = self.process.poll()
        if status is None:
            if not standby:
                self._leave_standby()
            elif self.standby is None and time.monotonic() > self.started + self._settle:
                self.standby = self._load()
            return
        if not self._restarts.again(status):
            raise GatewayFailed("the gateway is not started again")
        self.process = self._start()
        self._settle = AGAIN

    def wait_for(self, page: str, first: bool = False) -> None:
        """Wait until it answers with this page. `/health` asks the server: asked too early, it would answer late.

        Args:
            first: this is its first start, and it is not kept: what ends it now would do so again.

        Raises:
            GatewayFailed: it has ended instead, or does not answer so in `PATIENCE`.
        """
        deadline = time.monotonic() + PATIENCE
        while not first or self.process.poll() is None:
            if not first:
                self.keep()
            try:
                found = str(addresses.status_of(*self._at, page, timeout=5.0, tls=self._tls))
            except OSError as error:
                found = str(error)
            if found == "200":
                return
            if time.monotonic() > deadline:
                raise GatewayFailed(f"the gateway does not work: {addresses.at(*self._at)}{page} answers {found}")
            time.sleep(0.1)
        raise GatewayFailed("the gateway did not start; see its message above")

    def stop(self) -> None:
        self._close()
        self._leave_standby()
        self.process.terminate()
        self.process.wait()

    def kill(self) -> None:
        """End it at once."""
        self._close()
        self._leave_standby()
        self.process.kill()

    def _leave_standby(self) -> None:
        if self.standby is not None:
            self.standby.kill()
            self.standby.communicate()
            self.standby = None

    def _close(self) -> None:
        for each in self._sockets:
            each.close()
