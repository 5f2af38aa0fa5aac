"""docs/plain_tritonserver.md, run as it stands there: the bare binary, our models as they are, one checkpoint."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import stat
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from voice_clone_client import Client

from tests.server.tools.test_readme import block
from tests.support.families.factories import CheckpointFactory
from tests.support.waiting import WAIT, until
from voice_clone_server import guard
from voice_clone_server.triton_binary import server_command
from voice_clone_server.triton_server import HELD_UP, MAX_STARTS, MODELS, OPTIONS, VARIABLES, free_ports

pytestmark = pytest.mark.thorough

LOADING = 300.0  # seconds
PAGE = "docs/plain_tritonserver.md"
ABSENT = sorted(model.name for model in MODELS.glob("fish_speech_*"))  # its own models; the ensemble follows from them


class Plain(NamedTuple):
    """A server that was started by the page's commands."""

    url: str
    http: str
    log: Path
    regions: str


def status(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=WAIT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.fixture(scope="module")
def server(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    """In a folder with nothing but the models; as in a container, `tritonserver` is on PATH: the wheel's binary."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "model_repository").symlink_to(MODELS)
    command, needed = server_command(folder)
    (folder / "bin").mkdir()
    grpc, http, metrics = free_ports(3)
    ports = [f"--grpc-port={grpc}", f"--http-port={http}", f"--metrics-port={metrics}"]
    region = f"voice_clone_plain_{os.getpid()}_{http}_"
    ours = shlex.join([*ports, f"--backend-config=python,shm-region-prefix-name={region}"])
    shim = folder / "bin" / "tritonserver"
    shim.write_text(f'#!/bin/bash\nexec {shlex.join(command)} "$@" {ours}\n')
    shim.chmod(0o755)
    script = block(PAGE, "bash", "tritonserver --model-repository")
    for there, here in {
        "=/checkpoint ": f"={checkpoint_folder('tiny', 0)} ",
        "=/voices ": f"={folder}/voices ",
    }.items():
        assert script.count(there) == 1
        script = script.replace(there, here)
    environment = {**os.environ, **needed, "PATH": f"{folder}/bin{os.pathsep}{needed['PATH']}"}
    guard.remove_at_end(f"/dev/shm/{region}*")
    log = folder / "log"

    def start() -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                ["bash", "-ec", script],
                cwd=folder,
                env=guard.marked(environment),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    process, starts = start(), 1
    try:
        deadline = time.monotonic() + LOADING
        while status(f"http://127.0.0.1:{http}/v2/models/qwen3_tts/ready") != 200:
            if process.poll() is not None and HELD_UP in log.read_text() and starts < MAX_STARTS:
                process, starts = start(), starts + 1  # as `TritonServer.start` does
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.2)
        yield Plain(f"127.0.0.1:{grpc}", f"http://127.0.0.1:{http}", log, region)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_family_with_a_checkpoint_serves(server: Plain, reference_clip: bytes, reference_text: str) -> None:
    with Client(server.url) as client:
        client.upload("Ada", reference_clip, reference_text=reference_text, wait=True)
        chunks = list(client.speak("Good morning.", voice="Ada", max_frames=3))
        assert sum(len(chunk.samples) for chunk in chunks) == 3 * 1920
        assert client.models() == ["qwen3_tts"], "the default is a family that serves"
    until(lambda: status(f"{server.http}/v2/health/ready") == 200)
    assert status(f"{server.http}/v2/models/fish_speech/ready") == 400


def test_each_model_without_a_checkpoint_has_one_line_that_says_what_to_set(server: Plain) -> None:
    lines = server.log.read_text(errors="replace").splitlines()
    reported = [line for line in lines if line.startswith("E") and "failed to load 'fish_speech_" in line]
    assert sorted(re.findall(r"failed to load '(\w+)'", "\n".join(reported))) == ABSENT
    assert all("VOICE_CLONE_FISH_SPEECH_CHECKPOINT_DIR" in line for line in reported)
    assert "Traceback" not in "\n".join(lines)


def test_no_other_user_reads_what_the_models_exchange(server: Plain) -> None:
    modes = [stat.S_IMODE(region.stat().st_mode) for region in Path("/dev/shm").glob(f"{server.regions}*")]
    assert modes and set(modes) == {0o600}


def test_the_page_has_what_the_models_need() -> None:
    words = shlex.split(block(PAGE, "bash", "tritonserver --model-repository"), comments=True)
    assert set(OPTIONS) <= set(words)
    assert {f"{name}={value}" for name, value in VARIABLES.items()} <= set(words)
