"""What other processes computed of a voice is named to them when the voice goes, and never before."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.fakes import FakeEncoder, clip
from tests.support.families.factories import CheckpointFactory
from tests.support.servers.process_memory import OVERWRITTEN, found
from voice_clone.errors import Internal, SpeakerNotFound
from voice_clone.speakers.cache import SpeakerCache
from voice_clone.speakers.disk.store import FileStore
from voice_clone.speakers.operations import Reply
from voice_clone.speakers.parsing import parse
from voice_clone_server.triton_binary import ROOT


class Others:
    """The other processes."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def forget(self, voices: Collection[str]) -> None:
        self.forgotten.extend(voices)

    def kept(self, digests: bool) -> Mapping[str, Any]:
        return {"a_talker": {"entries": 1}}


class Server:
    """A cache whose other processes are `others`."""

    def __init__(self, directory: Path) -> None:
        self.others = Others()
        self.cache = SpeakerCache(
            FileStore(directory), FakeEncoder(), model_types=lambda: ["qwen3_tts"], other_processes=self.others
        )

    def __call__(self, operation: str, options: dict[str, Any] | None = None, **fields: Any) -> Reply:
        return self.cache.call(parse(operation, fields, options or {}))

    def upload(self, name: str, seed: int) -> str:
        """The origin of a new voice."""
        self("upload", {"wait": True, "replace": True}, name=name, audio=clip(seed), reference_text="Hello.")
        return str(self("resolve", name=name, model_type="qwen3_tts").result["origin"])

    def gone(self) -> set[str]:
        """What was forgotten since the last call."""
        found, self.others.forgotten = set(self.others.forgotten), []
        return found


@pytest.fixture
def server(tmp_path: Path) -> Any:
    server = Server(tmp_path)
    yield server
    server.cache.close()


def test_every_way_in_which_a_voice_goes(server: Server) -> None:
    inline = server("resolve", audio=clip(1), reference_text="Hello.", model_type="qwen3_tts").result["origin"]
    first, other = server.upload("Ada", 1), server.upload("Bob", 2)
    assert len({inline, first, other}) == 3 and server.gone() == set()
    second = server.upload("ada", 3)
    assert server.gone() == {first, inline} and second != first
    server("prepare", {"force": True}, name="Ada")
    assert second in server.gone()
    third = server("resolve", name="Ada", model_type="qwen3_tts").result["origin"]
    assert third not in (first, second)
    bundle = server("export", name="Ada").artifacts
    server("import", {"replace": True}, audio=bundle)
    assert third in server.gone()
    server("delete", name="Bob")
    assert other in server.gone()
    with pytest.raises(SpeakerNotFound):
        server("delete", name="Bob")
    with pytest.raises(SpeakerNotFound):
        server("delete", {"owner": "mallory"}, name="Ada")
    assert server.gone() == set()
    assert server("stats").result["kept"] == {"a_talker": {"entries": 1}}


def test_every_owners_copy_of_a_clip_goes_with_a_voice(server: Server) -> None:
    said: dict[str, Any] = {"audio": clip(1), "reference_text": "Hello.", "model_type": "qwen3_tts"}
    owners: list[dict[str, Any]] = [{}, {"owner": "ada"}, {"owner": "bob"}]
    statuses = ["miss"] * 3
    for _ in range(2):
        assert [server("resolve", options, **said).result["status"] for options in owners] == statuses
        statuses = ["hit"] * 3
    server("upload", {"owner": "ada", "wait": True}, name="Ada", audio=clip(1), reference_text="Hello.")
    server("delete", {"owner": "ada"}, name="Ada")
    assert [server("resolve", options, **said).result["status"] for options in owners] == ["miss"] * 3


def test_a_voice_without_a_clip(server: Server) -> None:
    server("upload", name="Ada", speaker_embedding=np.ones(1024, np.float32), model_type="qwen3_tts")
    origin = server("resolve", name="Ada", model_type="qwen3_tts").result["origin"]
    for options, scope in (({}, ""), ({"owner": "ada"}, "of ada")):
        embedding = np.ones(1024, np.float32)
        given = server("resolve", options, speaker_embedding=embedding, model_type="qwen3_tts").result
        assert (given["origin"], given["scope"]) == ("", scope)
    server("delete", name="Ada")
    assert server.gone() == {origin}


def test_a_voice_whose_file_is_set_aside(server: Server, tmp_path: Path) -> None:
    origin = server.upload("Ada", 1)
    [file] = (tmp_path / "voices").iterdir()
    data = bytearray(file.read_bytes())
    data[-2000:] = bytes(2000)  # the clip, or what was made of it
    file.write_bytes(data)
    with pytest.raises(Internal):
        server("prepare", {"force": True}, name="Ada")
    assert origin in server.gone() and list((tmp_path / "quarantine").iterdir())
    with pytest.raises(SpeakerNotFound):
        server("delete", name="Ada")
    assert not list((tmp_path / "quarantine").iterdir())


def test_no_text_of_a_deleted_voice_is_held(tmp_path: Path, checkpoint_folder: CheckpointFactory) -> None:
    """Transcript, consent and description, in the memory of a process that did all that is done with a voice: once
    each while there is the voice, and never again.
    """
    command = [
        sys.executable,
        "-m",
        "tests.support.doubles.erasure_worker",
        str(tmp_path),
        str(checkpoint_folder("tiny", 0)),
    ]
    text = secrets.token_hex(12).encode()
    environment = {**os.environ, **OVERWRITTEN, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, env=environment) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(text + b"\n")
        worker.stdin.flush()
        counts = {}
        for _ in range(2):
            stage = worker.stdout.readline().decode().strip()
            counts[stage] = found(worker.pid, [text])
            worker.stdin.write(b"\n")
            worker.stdin.flush()
    assert worker.returncode == 0 and counts == {"held": 3, "deleted": 0}
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and text in path.read_bytes()]
