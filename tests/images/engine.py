"""docker or podman, and stand-ins of base images where no registry is within reach."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from voice_clone_client import Client

from tests.images.stand_ins import FILES, PYTHON, RECIPES, ROOTS, TRITON_STAGE
from voice_clone_server import addresses
from voice_clone_server.triton_server import ROOT, free_ports

PATIENCE = 900.0  # seconds for a first start, which compiles, on a busy machine
PREFIX = f"voice-clone-test-{uuid.uuid4().hex[:8]}"
BUILD_OPTIONS = shlex.split(os.environ.get("VOICE_CLONE_IMAGES_BUILD", ""))
"""What a build needs on this machine: `-v` of certificates, or `--build-arg PIP_EXTRA_INDEX_URL=` of torch's builds."""
KINDS: dict[str, str] = {}
"""How each image of others was had."""


class Engine:
    """Builds images, and runs containers on the host's network."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        there = (name for name in ("docker", "podman") if shutil.which(name))
        self.program = next(
            name for name in there if subprocess.run([name, "info"], capture_output=True).returncode == 0
        )
        self._volumes: list[str] = []

    def call(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the program."""
        command = [self.program, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
        return done

    def have(self, name: str) -> None:
        """Have an image of others: its own, else a stand-in."""
        if "stand-in" in self.call("image", "inspect", name, check=False).stdout:
            KINDS[name] = "a stand-in made before"
        elif self.call("pull", name, check=False).returncode == 0:
            KINDS[name] = "its own"
        else:
            (self._make_root if name in ROOTS else self._build_stand_in)(name)
            KINDS[name] = "a stand-in"

    def _make_root(self, name: str) -> None:
        (packages, options, suite), tar = ROOTS[name], self._scratch / "root.tar"
        documents = (f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "locale", "man"))
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", *documents, *options]
        subprocess.run([*command, suite, str(tar)], check=True)
        self.call("import", "--change", "LABEL kind=stand-in", "--change", "CMD python3", str(tar), name)
        tar.unlink()

    def _build_stand_in(self, name: str) -> None:
        self.have(RECIPES[name].split()[1])
        if TRITON_STAGE in RECIPES[name]:
            self.build("triton")
        self.build_on(f"{RECIPES[name]}LABEL kind=stand-in\n", name)

    def build_on(self, recipe: str, name: str) -> None:
        """Build an image of a text."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            for file, text in {"Dockerfile": recipe, **FILES}.items():
                (Path(folder) / file).write_text(text, encoding="utf-8")
            self._build("--tag", name, folder)

    def build(self, target: str, *options: str, name: str = "", source: Path = ROOT) -> None:
        """Build an image of the Dockerfile; `name` is what it is called here, without one as its target."""
        self.have(PYTHON)
        self._build("--target", target, "--tag", image(name or target), *options, str(source))

    def _build(self, *options: str) -> None:
        own = ["--format=docker", "--pull=never"] if self.program == "podman" else []
        self.call("build", "--network=host", *BUILD_OPTIONS, *own, *options)

    def volume(self) -> str:
        """The name of a new volume."""
        self._volumes.append(f"{PREFIX}-{len(self._volumes)}")
        return self._volumes[-1]

    @contextlib.contextmanager
    def container(self, target: str, *options: str, command: Sequence[str] | None = None) -> Iterator[Container]:
        """A running container."""
        name = f"{PREFIX}-{uuid.uuid4().hex[:8]}"
        network = () if any(each.startswith("--network") for each in options) else ("--network=host",)
        words = (f"--name={name}", "--no-healthcheck", *network, *options, image(target), *(command or ()))
        self.call("run", "--detach", *words)
        try:
            yield Container(self, name)
        finally:
            self.call("rm", "--force", "--volumes", name, check=False)

    def remove_all(self) -> None:
        """Remove the volumes; the images stay, for the next build."""
        for each in self._volumes:
            self.call("volume", "rm", "--force", each, check=False)


def image(target: str) -> str:
    """The name of an image of ours."""
    return f"localhost/voice-clone-test:{target}"


class Container:
    """A container that has been started."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self.name = engine, name

    def log(self) -> str:
        """What it has printed."""
        done = self._engine.call("logs", self.name)
        return done.stdout + done.stderr

    def status(self) -> int | None:
        """Its exit status; None: it runs."""
        [found] = json.loads(self._engine.call("inspect", self.name).stdout)
        return None if found["State"]["Status"] in ("created", "running") else int(found["State"]["ExitCode"])

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it."""
        return self._engine.call("exec", self.name, *command, check=False)

    def signal(self, name: str) -> None:
        """Send it one."""
        self._engine.call("kill", f"--signal={name}", self.name)

    def wait(self, until: Callable[[], object], ended: bool = False) -> None:
        """Wait until something holds; unless `ended`, it must run meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while not until():
            assert ended or self.status() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.2)

    def ready(self) -> Container:
        """Wait until the server in it is ready."""
        self.wait(lambda: "Ready (" in self.log())
        return self

    def exit(self) -> int:
        """Wait until it has ended; its exit status."""
        self.wait(lambda: self.status() is not None, ended=True)
        status = self.status()
        assert status is not None
        return status


class Ports:
    """Free ports of the host, as options of tools/serve, and of the engine for the ports of an image."""

    def __init__(self) -> None:
        self.gateway, self.grpc, self.http, self.metrics = free_ports(4)
        self.own = [f"--grpc-port={self.grpc}", f"--http-port={self.http}", f"--metrics-port={self.metrics}"]
        self.options = [f"--gateway={self.gateway}", *self.own]
        places = {self.grpc: 8001, self.http: 8000, self.metrics: 8002}
        self.published = [f"--publish=127.0.0.1:{port}:{inside}" for port, inside in places.items()]

    def client(self, model: str | None = None) -> Client:
        """A client of the server; without a model, of its default family."""
        return Client(f"127.0.0.1:{self.grpc}", model=model)

    def fetch(self, path: str) -> bytes:
        """A page of the gateway."""
        return addresses.fetch(f"http://127.0.0.1:{self.gateway}{path}", 60.0)


def health_check(engine: Engine, target: str) -> list[str]:
    """The command of an image's health check."""
    [found] = json.loads(engine.call("image", "inspect", image(target)).stdout)
    check = found.get("Healthcheck") or found["Config"]["Healthcheck"]  # podman has it above, docker below
    first, *words = check["Test"]
    assert first == "CMD"
    return list(words)
