"""A tritonserver in a folder as /opt/tritonserver, which VOICE_CLONE_TRITON_DIR names, serves as that of the wheel."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from voice_clone_client import Client

from tests.support.families.factories import CheckpointFactory
from voice_clone_server.triton_binary import VARIABLE, server_command
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough


def test_it_serves(
    tmp_path: Path, checkpoint_folder: CheckpointFactory, monkeypatch: pytest.MonkeyPatch, reference_clip: bytes
) -> None:
    if os.environ.get(VARIABLE):
        pytest.skip(f"all tests run on {os.environ[VARIABLE]}")
    [server, backends], environment = server_command(tmp_path)
    folder = tmp_path / "installed"
    (folder / "bin").mkdir(parents=True)
    shutil.move(server, folder / "bin" / "tritonserver")
    shutil.move(backends.partition("=")[2], folder / "backends")
    (folder / "lib").symlink_to(environment["LD_LIBRARY_PATH"].split(os.pathsep)[0])
    monkeypatch.setenv(VARIABLE, str(folder))
    with TritonServer(checkpoint_folder("tiny", 0), tmp_path / "voices", log=tmp_path / "log") as named:
        assert named.process is not None
        assert Path(f"/proc/{named.process.pid}/exe").resolve() == folder / "bin" / "tritonserver"
        with Client(named.url) as client:
            client.upload("Ada", reference_clip, wait=True)
            assert list(client.speak("Good morning.", voice="Ada", max_frames=3))[-1].final
        named.kill()
