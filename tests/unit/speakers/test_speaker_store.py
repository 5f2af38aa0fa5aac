"""Speakers on disk: the format, restoring, damage, a full or broken disk, ownership of the directory."""

from __future__ import annotations

import errno
import hashlib
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
from safetensors.numpy import load, load_file, save_file

from tests.support.fakes import FakeEncoder, Voices, clip
from tests.support.waiting import until
from voice_clone.errors import Internal, Overloaded, SpeakerNotFound, VoiceCloneError
from voice_clone.settings import Settings, VoiceSettings
from voice_clone.speakers.disk.files import Files
from voice_clone.speakers.disk.latest import KnownInDirectory
from voice_clone.speakers.record import ArtifactId

Make = Callable[..., Voices]


def file_of(voices: Voices) -> Path:
    (path,) = (voices.directory / "voices").iterdir()
    return path


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


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _foreign(path: Path) -> None:
    save_file({"weight": np.zeros(4, np.float32)}, path)


def _junk(path: Path) -> None:
    path.write_bytes(b"not a voice" * 1000)


def _alter_header(path: Path) -> None:
    data = path.read_bytes()
    assert data.count(b"16000") == 1
    path.write_bytes(data.replace(b"16000", b"15000"))


def _link(path: Path) -> None:
    other = path.parent.parent.parent / "elsewhere"
    path.rename(other)
    path.symlink_to(other)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _other_name(path: Path) -> None:
    path.rename(path.with_name("0" * 64 + ".safetensors"))


@pytest.mark.parametrize("harm", [_truncate, _empty, _foreign, _junk, _alter_header, _link, _directory, _other_name])
def test_a_file_that_is_no_speakers_is_set_aside_with_a_warning(
    voices: Voices, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:  # C10, A11
    voices.upload("Bob", 2)
    bob = file_of(voices)
    voices.upload("Ada", 1)
    voices.cache.close()
    harm(bob)
    voices.restart()
    assert [speaker["name"] for speaker in voices.call("list").result["speakers"]] == ["Ada"]
    assert voices.resolve("Ada").result["status"] == "restored"
    assert len(list((voices.directory / "quarantine").iterdir())) == 1
    assert "in quarantine" in caplog.text
    voices.upload("Bob", 3)
    voices.restart()
    assert voices.call("list").result["count"] == 2


def test_files_that_were_being_written_are_removed_at_start(voices: Voices) -> None:  # B13, C8
    voices.upload()
    for path in (".temporary-generation", "voices/.temporary-x"):
        (voices.directory / path).write_bytes(b"half")
    voices.restart()
    assert len(voices.on_disk()) == 1 and voices.get()["name"] == "Ada"


def _flip(path: Path, inside: bytes) -> None:
    data = bytearray(path.read_bytes())
    at = data.rindex(inside) + len(inside) // 2
    data[at] ^= 0xFF
    path.write_bytes(bytes(data))


def test_damaged_artifacts_are_made_again_from_the_audio(voices: Voices) -> None:
    voices.upload()
    voices.upload("Intact", 1)
    before = voices.resolve().artifacts
    voices.cache.close()
    path = next(p for p in (voices.directory / "voices").iterdir() if load_file(p)["audio"].tobytes() == clip(0))
    _flip(path, load_file(path)["qwen3_tts/x_vector/speaker_embedding"].tobytes())
    voices.restart()
    reply = voices.resolve()
    assert (reply.result["status"], reply.artifacts, voices.encoder.extractions) == ("miss", before, 1)
    voices.restart()
    assert voices.resolve().result["status"] == "restored" and voices.resolve("Intact").artifacts


def test_damaged_audio_is_reported_and_ready_artifacts_still_serve(voices: Voices) -> None:  # B7
    voices.upload(reference_text="Hello.")
    voices.cache.close()
    _flip(file_of(voices), clip(0))
    voices.restart()
    assert voices.resolve().result["status"] == "restored"
    with pytest.raises(Internal, match="the stored clip of the voice 'Ada' is damaged; upload it again"):
        voices.resolve(mode="x_vector")
    assert voices.resolve().result["status"] == "hit"


def test_a_voice_of_which_nothing_is_of_use_is_set_aside(voices: Voices) -> None:
    voices.upload()
    voices.cache.close()
    _flip(file_of(voices), clip(0))
    voices.restart(encoder=FakeEncoder(checkpoint="b"))
    with pytest.raises(Internal, match="upload it again"):
        voices.resolve()
    with pytest.raises(SpeakerNotFound):
        voices.get()
    assert [path.parent.name for path in voices.on_disk()] == ["quarantine"]


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
            voices.upload(attempt, 5)
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
            voices.upload("Bob" if action == "upload" else "Ada", 7, wait=False)
    shown = voices.call("list").result["speakers"]
    voices.restart()
    names = ("name", "generation", "file_size", "created_at")
    assert [[s[n] for n in names] for s in voices.call("list").result["speakers"]] == [
        [s[n] for n in names] for s in shown
    ]
    for speaker in shown:
        assert voices.resolve(speaker["name"]).artifacts


def test_generations_grow_across_deletes_restarts_and_crashes(voices: Voices, tmp_path: Path) -> None:
    seen = [voices.upload()["generation"]]
    for crash in (False, True, False):
        seen.append(voices.upload()["generation"])
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
    seen.append(voices.upload()["generation"])
    assert seen == sorted(set(seen))


def test_a_damaged_generation_counter_is_not_fatal_and_generations_still_grow(
    voices: Voices, caplog: pytest.LogCaptureFixture
) -> None:
    before = voices.upload()["generation"]
    voices.cache.close()
    (voices.directory / "generation").write_bytes(b"\xff garbage")
    voices.restart()
    assert voices.upload()["generation"] > before + 1_000_000 and "counter is damaged" in caplog.text


def test_a_second_owner_is_refused_and_the_error_names_the_first(voices: Voices) -> None:  # C1
    with pytest.raises(Overloaded, match=f"in use by process {os.getpid()} on ") as caught:
        Voices(voices.directory)
    assert str(voices.directory) not in str(caught.value)
    program = "from tests.support.fakes import *; import sys; Voices(Path(sys.argv[1]))"
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
    for action in (lambda: voices.upload(), lambda: voices.call("delete", name="Ada")):
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

    monkeypatch.setattr("voice_clone.speakers.disk.voice_file.read", refuse)
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
    (voices.directory / "voices" / "folder.safetensors").mkdir()
    found = list(KnownInDirectory(voices.directory).latest(wanted))
    assert [record.name for record, _ in found] == ["third", "second", "first"]
    assert [set(each) for _, each in found] == [{"codec_codes", "speaker_embedding"}] * 3
    for (_, each), name in zip(found, ("third", "second", "first"), strict=True):
        resolved = load(voices.resolve(name).artifacts or b"")
        np.testing.assert_array_equal(each["codec_codes"], resolved["codec_codes"])


def quarantined(voices: Voices) -> list[str]:
    return sorted(path.name.split(".")[0] for path in (voices.directory / "quarantine").iterdir())


def test_quarantine_keeps_nothing_of_a_deleted_voice(voices: Voices) -> None:
    """Not of one that was uploaded again, nor of one that exists in quarantine alone."""

    def damage(name: str) -> None:
        voices.upload(name, 1)
        key = hashlib.sha256(name.lower().encode()).hexdigest()
        voices.cache.close()
        (voices.directory / "voices" / f"{key}.safetensors").write_bytes(b"torn")
        voices.restart()

    for name in ("Ada", "Bob", "Cid"):
        damage(name)
    (voices.directory / "quarantine" / "something else").mkdir()
    assert len(quarantined(voices)) == 4
    voices.upload("Ada", 2)
    assert len(quarantined(voices)) == 4  # what replaces nothing removes nothing
    voices.call("delete", name="Ada")
    assert len(quarantined(voices)) == 3
    with pytest.raises(SpeakerNotFound):
        voices.call("delete", {"owner": "mallory"}, name="Bob")
    assert len(quarantined(voices)) == 3
    with pytest.raises(SpeakerNotFound):
        voices.call("delete", name="bob")
    assert len(quarantined(voices)) == 2
    voices.upload("Cid", 3)
    voices.upload("Cid", 4)
    assert quarantined(voices) == ["something else"]
