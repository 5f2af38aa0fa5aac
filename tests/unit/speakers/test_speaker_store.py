"""Speakers on disk: the format, restoring, a full or broken disk, ownership of the directory."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, load_file

from tests.support.doubles.fakes import Voices, clip, file_of
from tests.support.waiting import until
from voice_clone.errors import Internal, Overloaded, SpeakerExists, VoiceCloneError
from voice_clone.settings import Settings, VoiceSettings
from voice_clone.speakers.disk.files import BatchWriter, Files
from voice_clone.speakers.disk.store import KnownInDirectory
from voice_clone.speakers.record import ArtifactId

Make = Callable[..., Voices]


def test_the_file_of_a_speaker_can_be_read_by_any_safetensors_reader(voices: Voices) -> None:  # B6
    voices.upload(reference_text="Hello.", consent="given on paper")
    path = file_of(voices)
    tensors = load_file(path)
    assert tensors["audio"].tobytes() == clip(0)  # C11: as uploaded, neither encoded again nor base64
    assert tensors["qwen3_tts/icl/codec_codes"].shape == (13, 16)  # B15: ceil(1 s x 12.5)
    assert tensors["qwen3_tts/icl/codec_codes"].dtype == np.int32
    assert tensors["qwen3_tts/icl/speaker_embedding"].shape == (1024,)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    record = json.loads(metadata["record"])
    assert metadata["format"] == "voice-clone speaker 1" and record["reference_text"] == "Hello."
    assert record["artifacts"][0][:2] == ["qwen3_tts", "icl"] and len(record["artifacts"][0][2]) == 64


def test_only_the_owner_can_read_the_directory(voices: Voices) -> None:
    voices.upload()
    for path in (voices.directory, *voices.directory.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_directory_that_was_there_keeps_its_mode_and_its_other_files(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "notes.txt").write_text("mine")
    (directory / ".temporary-mine").write_text("mine")
    voices = Voices(directory)
    voices.upload()
    voices.restart()
    voices.cache.close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert {stat.S_IMODE((directory / name).stat().st_mode) for name in ("voices", "quarantine")} == {0o700}
    assert (directory / "notes.txt").exists() and (directory / ".temporary-mine").exists()


def test_the_directory_is_set_by_parameter_and_environment_and_outlives_a_reboot_by_default(
    tmp_path: Path,
) -> None:  # A12
    parameter = {"parameters": {"voice_dir": {"string_value": str(tmp_path / "a")}}}
    by_both = VoiceSettings.of(Settings(parameter, {"VOICE_CLONE_VOICE_DIR": str(tmp_path / "b")})).voice_dir
    assert (VoiceSettings.of(Settings(parameter, {})).voice_dir, by_both) == (tmp_path / "a", tmp_path / "b")
    default = VoiceSettings().voice_dir
    assert default.is_relative_to(Path.home()) and "tmp" not in default.parts and "cache" not in str(default).lower()
    Voices(by_both).cache.close()
    assert (tmp_path / "b" / "voices").is_dir()


def test_names_never_become_paths(voices: Voices) -> None:  # A11
    for name in ("con", "a.b", "v1.0 final", "小明", "e\u0301", "-rf", "x" * 64):
        voices.upload(name)
    names = {path.name for path in (voices.directory / "voices").iterdir()}
    assert len(names) == 7 and all(len(name) == 64 + len(".safetensors") for name in names)


def test_restart_shows_the_same_list(voices: Voices) -> None:  # C10
    voices.upload("Ada", 1, reference_text="Hello\nthere, 你好 \U0001f600.", consent="c", description="d")
    voices.upload("bob", 2)
    embedding = np.arange(1024, dtype=np.float32)
    voices.upload("Direct", audio=None, speaker_embedding=embedding, model_type="qwen3_tts")
    before = voices.call("list").result
    voices.restart()
    assert voices.call("list").result == before
    assert voices.encoder.extractions == 0


class FailingFiles(Files):
    """A disk on which one kind of operation fails from the `after`-th on."""

    def __init__(self, operation: str, code: int, after: int = 0) -> None:
        self.operation, self.code, self.left = operation, code, after

    def _fail(self, operation: str) -> None:
        if operation == self.operation:
            self.left -= 1
            if self.left < 0:
                raise OSError(self.code, os.strerror(self.code), "/secret/path")

    def write(self, path: Path, data: bytes) -> None:
        if self.operation == "write" and self.left <= 0:
            path.write_bytes(data[: len(data) // 2])
        self._fail("write")
        super().write(path, data)

    def rename(self, old: Path, new: Path) -> None:
        self._fail("rename")
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._fail("remove")
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self._fail("sync")
        super().sync_directory(path)


@pytest.mark.parametrize("operation", ["write", "rename"])
@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (errno.ENOSPC, Overloaded, "the voice store is full .No space left on device."),
        (errno.EDQUOT, Overloaded, "the voice store is full"),
        (errno.EROFS, Overloaded, "could not be written .Read-only file system.; nothing was changed, try again later"),
        (errno.EMFILE, Overloaded, "could not be written .Too many open files.; nothing was changed, try again later"),
        (errno.EACCES, Internal, "could not be written .Permission denied.; nothing was changed"),
        (errno.EIO, Internal, "could not be written .Input/output error.; nothing was changed"),
        (errno.EXDEV, Internal, "nothing was changed"),
    ],
)
def test_a_disk_that_fails_loses_nothing(
    make_voices: Make, operation: str, code: int, kind: type[VoiceCloneError], words: str
) -> None:  # B13, B14
    voices = make_voices()
    voices.upload()
    before, listed = voices.resolve().artifacts, voices.call("list").result
    voices.restart(files=FailingFiles(operation, code, after=1))  # the generation is written, the speaker is not
    for attempt in ("Ada", "Bob"):
        with pytest.raises(kind, match=words) as caught:
            voices.upload(attempt, 5, replace=True)
        assert "secret" not in str(caught.value) and str(voices.directory) not in str(caught.value)
    with pytest.raises(kind, match=words):
        voices.call("prepare", {"force": True}, name="Ada")
    assert voices.call("list").result == listed  # B14: the previous status is back
    assert voices.resolve().artifacts == before
    assert len(voices.on_disk()) == 1  # no orphan
    voices.restart()
    assert voices.call("list").result == listed and voices.resolve().artifacts == before


def test_an_extraction_that_cannot_be_saved_leaves_the_voice_pending(make_voices: Make) -> None:  # B14
    voices = make_voices(defaults=())
    voices.upload()
    voices.restart(files=FailingFiles("write", errno.ENOSPC))
    with pytest.raises(Overloaded, match="the voice store is full"):
        voices.call("prepare", name="Ada", model_type="qwen3_tts")
    [state] = voices.get()["artifacts"]
    assert state["state"] == "pending" and "the server tries again" in state["reason"]
    assert voices.resolve().result["status"] == "hit", "speech needs no room on the disk"
    voices.restart()
    assert voices.resolve().result["status"] == "miss"


def test_a_batch_that_could_not_be_finished_is_finished_before_the_next(tmp_path: Path) -> None:
    """Two imports at once: the second one has begun when the disk keeps the files of the first from their names."""
    disk = FailingFiles("rename", errno.EIO, after=1)  # the list gets its name
    writer, paths = BatchWriter(tmp_path, tmp_path, disk), [tmp_path / "one", tmp_path / "two"]
    writer.replace([(paths[0], lambda: b"1")])
    with pytest.raises(OSError, match="Input/output error"):
        writer.finish()
    with pytest.raises(OSError, match="Input/output error"):
        writer.replace([(paths[1], lambda: b"2")])
    disk.left = 100
    writer.replace([(paths[1], lambda: b"2")])
    assert (paths[0].read_bytes(), writer.path_of(paths[1]).read_bytes()) == (b"1", b"2")
    writer.finish()
    assert [path.read_bytes() for path in paths] == [b"1", b"2"] and sorted(tmp_path.iterdir()) == paths


def test_a_delete_that_fails_keeps_the_voice(make_voices: Make) -> None:
    voices = make_voices()
    voices.upload()
    voices.restart(files=FailingFiles("remove", errno.EACCES))
    with pytest.raises(Internal, match="Permission denied"):
        voices.call("delete", name="Ada")
    assert voices.resolve().result["status"] == "restored"


@pytest.mark.parametrize("action", ["upload", "replace", "delete", "prepare"])
def test_a_change_that_the_disk_does_not_confirm_is_reported_and_memory_agrees_with_the_disk(
    make_voices: Make, action: str
) -> None:  # B14
    voices = make_voices()
    voices.upload()
    files = FailingFiles("sync", errno.EIO, after=100)
    voices.restart(files=files)
    files.left = 0 if action == "delete" else 1  # the generation is synced first
    with pytest.raises(Internal, match="did not confirm the change"):
        if action == "delete":
            voices.call("delete", name="Ada")
        elif action == "prepare":
            voices.call("prepare", {"force": True}, name="Ada")
        else:
            voices.upload("Bob" if action == "upload" else "Ada", 7, wait=False, replace=True)
    shown = voices.call("list").result["speakers"]
    voices.restart()
    names = ("name", "generation", "file_size", "created_at")
    assert [[s[n] for n in names] for s in voices.call("list").result["speakers"]] == [
        [s[n] for n in names] for s in shown
    ]
    for speaker in shown:
        assert voices.resolve(speaker["name"]).artifacts


def test_what_the_disk_did_not_confirm_is_written_again(make_voices: Make) -> None:
    """Also if the caller sends the same again, which otherwise changes nothing."""
    files = FailingFiles("sync", errno.EIO, after=100)
    voices = make_voices(files=files)
    voices.upload("Bob", wait=False)  # the generations of a while are synced with it
    files.left = 0
    for _ in range(2):
        with pytest.raises(Internal, match="did not confirm the change"):
            voices.upload("Ada", 1, wait=False)
    with pytest.raises(SpeakerExists):
        voices.upload("Ada", 2, wait=False)
    files.left = 100
    before = voices.get("Ada")["generation"]
    made = [voices.upload("Ada", 1, wait=False)["generation"] for _ in range(2)]
    assert before < made[0] == made[1]


def test_generations_grow_across_deletes_restarts_and_crashes(voices: Voices, tmp_path: Path) -> None:
    seen = [voices.upload()["generation"]]
    for crash in (False, True, False):
        seen.append(voices.upload(replace=True)["generation"])
        seen.append(voices.call("delete", name="Ada").result["generation"] + 0)
        assert seen.pop() == seen[-1]
        if crash:
            copy = tmp_path / "copy"
            shutil.copytree(voices.directory, copy)  # as a crash would leave it
            other = Voices(copy)
            seen_there = other.upload()["generation"]
            other.cache.close()
            assert seen_there > seen[-1]
        voices.restart()
    seen.append(voices.upload(replace=True)["generation"])
    assert seen == sorted(set(seen))


def test_a_second_owner_is_refused_and_the_error_names_the_first(voices: Voices) -> None:  # C1
    with pytest.raises(Overloaded, match=f"in use by process {os.getpid()} on ") as caught:
        Voices(voices.directory)
    assert str(voices.directory) not in str(caught.value)
    program = "from tests.support.doubles.fakes import *; import sys; Voices(Path(sys.argv[1]))"
    second = subprocess.run([sys.executable, "-c", program, voices.directory], capture_output=True, text=True)
    assert second.returncode and f"in use by process {os.getpid()} on " in second.stderr
    voices.restart()  # given up, and taken again


def test_a_new_owner_waits_for_the_old_one_and_sees_all_that_it_did(
    make_voices: Make, caplog: pytest.LogCaptureFixture
) -> None:
    old = make_voices()
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.INFO):
        new = pool.submit(make_voices, wait=30.0)
        until(lambda: f"in use by process {os.getpid()} on " in caplog.text)
        old.upload("Ada")
        assert not new.done()
        old.cache.close()
        assert new.result(30.0).get("Ada")["name"] == "Ada"
    assert caplog.text.count("waiting for it, 30 s at most") == 1


def test_a_new_owner_waits_no_longer_than_its_setting(make_voices: Make) -> None:
    make_voices()
    began = time.monotonic()
    with pytest.raises(Overloaded, match=f"in use by process {os.getpid()} on "):
        make_voices(wait=0.2)
    assert time.monotonic() - began >= 0.2


def test_a_closed_store_changes_nothing_any_more(voices: Voices) -> None:
    voices.upload()
    voices.cache.close()
    other = Voices(voices.directory)
    for action in (lambda: voices.upload("Ada", 1, replace=True), lambda: voices.call("delete", name="Ada")):
        with pytest.raises(Overloaded, match="the server is stopping"):
            action()
    assert other.get()["name"] == "Ada"
    other.cache.close()


def test_a_directory_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:  # A11
    (tmp_path / "outside").mkdir()
    (tmp_path / "speakers").mkdir()
    (tmp_path / "speakers" / "voices").symlink_to(tmp_path / "outside")
    with pytest.raises(Internal, match="could not be opened"):
        Voices(tmp_path / "speakers")


def test_restoring_reads_no_tensor(voices: Voices, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(5):
        voices.upload(f"v{index}", index)
    voices.cache.close()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("voice_clone.speakers.voice_file.read", refuse)
    voices.restart()
    assert voices.call("list").result["count"] == 5


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_it_is_acknowledged(
    voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:  # B13
    voices.upload("First")
    steps: list[str] = []

    def record(name: str) -> None:
        original = getattr(os, name)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            is_directory = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            steps.append("sync directory" if is_directory else name)
            return original(*args, **kwargs)

        monkeypatch.setattr(os, name, recorded)

    for name in ("write", "fsync", "replace"):
        record(name)
    voices.upload("Ada", wait=False)
    assert steps[:4] == ["write", "fsync", "replace", "sync directory"]


def test_others_see_the_artifacts_of_the_speakers_on_disk(voices: Voices) -> None:
    """The last one written first; without the owner's lock, and whatever else lies there."""
    wanted = ArtifactId("qwen3_tts", "icl")
    assert list(KnownInDirectory(voices.directory / "absent").latest(wanted)) == []
    for number, name in enumerate(("first", "second", "third")):
        voices.upload(name, audio=clip(number), reference_text="Hello.")
        [path] = [each for each in (voices.directory / "voices").iterdir() if each.stat().st_mtime > 1e9]
        os.utime(path, (number, number))
    voices.upload("no transcript", audio=clip(3))
    (voices.directory / "voices" / f"{'0' * 64}.safetensors").write_bytes(b"nonsense")
    (voices.directory / "voices" / f"{'1' * 64}.safetensors").mkdir()
    shutil.copy(path, path.with_name(f".temporary-{path.name}"))  # of an upload that has not ended, and may never
    found = list(KnownInDirectory(voices.directory).latest(wanted))
    assert [record.name for record, _ in found] == ["third", "second", "first"]
    assert [set(each) for _, each in found] == [{"codec_codes", "speaker_embedding"}] * 3
    for (_, each), name in zip(found, ("third", "second", "first"), strict=True):
        resolved = load(voices.resolve(name).artifacts or b"")
        np.testing.assert_array_equal(each["codec_codes"], resolved["codec_codes"])
