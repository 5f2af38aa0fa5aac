"""Projects of Docker Compose, on docker or on podman's socket."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.images.engine import PREFIX, Engine
from tests.support.official.deployment_files import program
from tests.support.waiting import until
from voice_clone_server.triton_server import ROOT

LIMITS = f"ulimits: {os.environ.get('VOICE_CLONE_IMAGES_ULIMITS', '{}')}"
"""What a machine needs that does not let podman set them itself."""


class Project:
    """What our files and one more describe, up; a context manager.

    Args:
        files: names of files in tools/, as cpu.
        more: what a further file says of each service that is brought up, in its lines.
        variables: for the files.
    """

    def __init__(
        self, engine: Engine, scratch: Path, files: Sequence[str], more: dict[str, list[str]], **variables: str
    ) -> None:
        self._engine, self._scratch = engine, scratch
        self._name = f"{PREFIX}-{'-'.join(files)}"
        self._services = list(more)
        lines = [line for name in more for line in (f"  {name}:", *(f"    {each}" for each in (LIMITS, *more[name])))]
        (scratch / "more.yml").write_text("\n".join(["services:", *lines]), encoding="utf-8")
        paths = [ROOT / "docker-compose.yml", *(ROOT / "tools" / f"docker-compose.{each}.yml" for each in files)]
        self._command = [program("docker-compose"), "--project-directory", str(ROOT), "--project-name", self._name]
        self._command += [word for path in (*paths, scratch / "more.yml") for word in ("--file", str(path))]
        self._environment = {**os.environ, **variables}
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Project:
        with contextlib.ExitStack() as exits:
            if self._engine.program == "podman":
                exits.enter_context(self._socket())
            exits.callback(self.call, "down", "--volumes", "--timeout=1")
            exits.enter_context(self._checking())
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def call(self, *words: str) -> str:
        """Run a command of Compose."""
        done = subprocess.run(
            [*self._command, *words], env=self._environment, capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self) -> None:
        """Start them and wait until all are healthy."""
        try:
            self.call("up", "--detach", "--no-build", "--wait", *self._services)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.call('logs', '--tail=20')}") from None

    def containers(self, service: str) -> list[str]:
        """Those of a service."""
        return self.call("ps", "--all", "--quiet", service).split()

    def healthy(self, container: str) -> bool:
        """Whether the health check of a container passes."""
        if self._engine.program == "podman":  # which still has the state from before a restart
            return self._engine.call("healthcheck", "run", container, check=False).returncode == 0
        [found] = json.loads(self._engine.call("inspect", container).stdout)
        return bool(found["State"].get("Health", {}).get("Status") == "healthy")

    @contextlib.contextmanager
    def _socket(self) -> Iterator[None]:
        socket = self._scratch / "podman.sock"
        self._environment["DOCKER_HOST"] = f"unix://{socket}"
        checked_here = {**os.environ, "DISABLE_HC_SYSTEMD": "true"}
        service = subprocess.Popen(["podman", "system", "service", "--time=0", f"unix://{socket}"], env=checked_here)
        try:
            until(socket.exists)
            yield
        finally:
            service.terminate()
            service.wait()

    @contextlib.contextmanager
    def _checking(self) -> Iterator[None]:
        """Run the health checks where nothing else does: podman leaves that to systemd."""
        over = threading.Event()

        def check() -> None:
            chosen = f"--filter=label=com.docker.compose.project={self._name}"
            while not over.wait(2):
                for each in self._engine.call("ps", "--quiet", chosen).stdout.split():
                    self._engine.call("healthcheck", "run", each, check=False)

        if self._engine.program != "podman":
            yield
            return
        thread = threading.Thread(target=check)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
