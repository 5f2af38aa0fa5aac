"""Files of voices that are damaged, foreign or half written: set aside or made again, and never taken for a voice."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.support.doubles.fakes import FakeEncoder, Voices, clip, expected, file_of
from voice_clone.errors import Internal, SpeakerNotFound
from voice_clone.speakers import voice_file
from voice_clone.speakers.voice_file import Header


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
    with pytest.raises(Internal, match=r"'Ada'.*upload it again"):
        voices.resolve(mode="x_vector")
    assert voices.resolve().result["status"] == "hit"


def test_a_file_that_is_damaged_while_artifacts_are_made_does_not_keep_the_voice_from_speaking(
    make_voices: Callable[..., Voices],
) -> None:
    voices = make_voices(defaults=())
    voices.upload()
    voices.encoder.during = lambda: _truncate(file_of(voices))
    assert voices.resolve().artifacts == expected(voices, clip(0))
    assert "the stored voice 'Ada' is damaged; upload it again" in voices.state()["reason"]


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


def test_a_damaged_generation_counter_is_not_fatal_and_generations_still_grow(
    voices: Voices, caplog: pytest.LogCaptureFixture
) -> None:
    before = voices.upload()["generation"]
    voices.cache.close()
    (voices.directory / "generation").write_bytes(b"\xff garbage")
    voices.restart()
    assert voices.upload(replace=True)["generation"] > before + 1_000_000 and "counter is damaged" in caplog.text


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
    voices.upload("Cid", 4, replace=True)
    assert quarantined(voices) == ["something else"]


def unreadable(path: Path) -> Header:
    raise OSError(errno.EIO, "Input/output error")


def test_a_voice_whose_file_cannot_be_read_does_not_come_back_after_a_delete(
    voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    voices.upload("Ada", 1)
    with monkeypatch.context() as patch:
        patch.setattr(voice_file, "read_header", unreadable)
        voices.restart()
    assert voices.call("list").result["count"] == 0 and len(voices.on_disk()) == 1
    with pytest.raises(SpeakerNotFound):
        voices.call("delete", {"owner": "mallory"}, name="Ada")
    assert len(voices.on_disk()) == 1, "whose voice it is, is not known"
    with pytest.raises(SpeakerNotFound):
        voices.call("delete", name="Ada")
    assert voices.on_disk() == []
    voices.restart()
    assert voices.call("list").result["count"] == 0


def test_a_voice_that_takes_the_place_of_a_file_that_cannot_be_read_stays(
    voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Ada", "Bob"):
        voices.upload(name, 1)
    bundle = voices.call("export").artifacts
    with monkeypatch.context() as patch:
        patch.setattr(voice_file, "read_header", unreadable)
        voices.restart()
    voices.upload("Ada", 2)
    voices.upload("Ada", 3, replace=True)
    for _ in range(2):
        voices.call("import", {"replace": True}, audio=bundle)
    voices.restart()
    assert [voices.resolve(name).result["status"] for name in ("Ada", "Bob")] == ["restored", "restored"]


CUT_MEANWHILE = """
import os
import sys
from pathlib import Path
from voice_clone.speakers.tensor_file import Damaged
from voice_clone.speakers.voice_file import read

def cut(name):
    os.truncate(path, 9000)  # whole pages of it are gone
    return True

path = Path(sys.argv[1])
try:
    read(path, cut)
except Damaged as error:
    print(error)
"""


def test_a_file_that_is_cut_short_while_it_is_read_does_not_end_the_process(voices: Voices) -> None:
    """As memory mapped from a file does where its bytes cannot be had. In a process of its own, which it would end."""
    voices.upload(audio=clip(0, seconds=5.0))
    made = subprocess.run([sys.executable, "-c", CUT_MEANWHILE, file_of(voices)], capture_output=True, text=True)
    assert (made.returncode, made.stdout) == (0, "the file is cut short\n"), made.stderr


def test_a_file_whose_bytes_the_disk_does_not_give_is_an_error_of_its_voice_alone(
    voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seed in (("Ada", 0), ("Bob", 1)):
        voices.upload(name, seed)
    voices.restart()
    really = os.pread

    def pread(handle: int, size: int, start: int) -> bytes:
        if size > 1000 and os.fstat(handle).st_ino == ada.stat().st_ino:
            raise OSError(errno.EIO, "Input/output error")
        return really(handle, size, start)

    ada = next(path for path in (voices.directory / "voices").iterdir() if clip(0) in path.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", pread)
        with pytest.raises(Internal, match=r"could not be read \(Input/output error\)"):
            voices.resolve("Ada")
        assert voices.resolve("Bob").result["status"] == "restored"
    assert voices.resolve("Ada").result["status"] == "restored", "the file is still there"
