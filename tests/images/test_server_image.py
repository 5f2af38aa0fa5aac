"""The server's image on a CPU: as an operator runs it, without rights, with its own command and health check."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.images.engine import KINDS, Container, Engine, Ports, health_check
from tests.images.serving import CONFINED, TEXT, over_grpc, speaks, upload
from tests.images.stand_ins import TRITON, TRITON_RELEASE
from tests.support.official.deployment_files import defaults
from tools.triton_releases import find
from voice_clone_server.triton_server import ROOT

CHECKPOINT = f"--volume={ROOT / 'tools' / 'data' / 'demo_voice'}:/checkpoint:ro"
LIMITS = ("--user=12345:0", *CONFINED, "--shm-size=1g", "--memory=3g")


@pytest.fixture(scope="module", autouse=True)
def built(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The image, with packages for a CPU."""
    engine.have(TRITON)
    source = ROOT if KINDS[TRITON] == "its own" else _with_another_python(tmp_path_factory.mktemp("source"))
    build = {"TRITON": TRITON_RELEASE, "TORCH": f"{defaults('packages')['TORCH']}+cpu", "ONNX_RUNTIME": "onnxruntime"}
    engine.build("server", *(f"--build-arg={name}={value}" for name, value in build.items()), source=source)


def _with_another_python(source: Path) -> Path:
    """What the build reads, in a new folder. In its table of Triton's releases ours has the stand-in's Python."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for line in ((ROOT / ".dockerignore").read_text(encoding="utf-8")).splitlines():
        found = ROOT / line[1:]
        if line.startswith("!"):
            copy = shutil.copy2 if found.is_file() else lambda *at: shutil.copytree(*at, symlinks=True, ignore=ignored)
            copy(found, source / found.name)
    shutil.copy2(ROOT / "Dockerfile", source)
    table = source / "tools" / "triton_releases.py"
    real, here = f'"{find(TRITON_RELEASE).python}"', f'"{defaults("triton")["PYTHON"]}"'
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    changed = [line.replace(real, here) if f'("{TRITON_RELEASE}"' in line else line for line in lines]
    assert changed != lines
    table.write_text("".join(changed), encoding="utf-8")
    return source


@contextmanager
def serving(engine: Engine, cache: str, voices: str) -> Iterator[tuple[Container, Ports]]:
    """The image with its own command on the demo's checkpoint, and the gateway's before it."""
    ports = Ports()
    mounts = (CHECKPOINT, f"--volume={cache}:/cache", f"--volume={voices}:/voices", "--env=VOICE_CLONE_DEVICE=cpu")
    gateway = (
        f"--env=VOICE_CLONE_GATEWAY_TRITON=127.0.0.1:{ports.grpc}",
        f"--env=VOICE_CLONE_GATEWAY_PORT={ports.gateway}",
        *CONFINED,
    )
    with (
        engine.container("server", "--network=bridge", *ports.published, *mounts, *LIMITS) as container,
        engine.container("gateway", *gateway),
    ):
        yield container, ports


def test_any_user_of_group_0_runs_it_without_rights(engine: Engine) -> None:
    check, cache, voices = health_check(engine, "server"), engine.volume(), engine.volume()
    with serving(engine, cache, voices) as (container, ports):
        assert container.execute(*check).returncode != 0, "healthy before it is ready"
        container.ready()
        assert container.execute(*check).returncode == 0
        assert container.execute("id", "-u").stdout.strip() == "12345"
        upload(ports, "rms")
        speaks(ports, "rms")
        with ports.client() as client:
            whole = over_grpc(client, "rms")
            with client.speak(TEXT, voice="rms", seed=1) as speech:
                first = len(next(speech).samples)
                container.signal("TERM")
                assert first + sum(len(chunk.samples) for chunk in speech) == whole, "it drains"
        assert container.exit() == 0
    with serving(engine, cache, voices) as (container, ports):
        container.ready()
        speaks(ports, "rms")
        assert container.execute("sh", "-c", "kill -9 $(pidof tritonserver)").returncode == 0
        container.wait(lambda: "is ready again" in container.log())
        speaks(ports, "rms")


def test_without_a_gpu_it_ends_and_says_so(engine: Engine) -> None:
    """Unless a variable says that it shall compute on the CPU."""
    with engine.container("server", CHECKPOINT, "--network=none") as container:
        assert container.exit() != 0
        assert "cuda" in container.log()
