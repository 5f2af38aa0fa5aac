"""The digest of what makes a sound: another one for all that may change a sample, the same for all that cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.waiting import until
from voice_clone.settings import DecoderSettings, Settings, TalkerSettings
from voice_clone.synthesizer import PartDigest, files_digest, part_digest


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "codec").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 9000)
    (folder / "codec" / "model.safetensors").write_bytes(b"decoder")
    (folder / "generation_config.json").write_text('{"temperature": 0.9}')
    return folder


def given(checkpoint: Path, **more: str) -> Settings:
    more = {"checkpoint_dir": str(checkpoint), "device": "cpu", **more}
    return Settings({}, {f"VOICE_CLONE_{name.upper()}": value for name, value in more.items()})


def talker(checkpoint: Path, **more: str) -> str:
    return part_digest(TalkerSettings.of(given(checkpoint, **more)))


def test_what_may_change_a_sample_changes_it(checkpoint: Path) -> None:
    found = {
        talker(checkpoint),
        talker(checkpoint, precision="bf16"),
        talker(checkpoint, deterministic="true"),
        talker(checkpoint, chunk_frames="4"),
        part_digest(DecoderSettings.of(given(checkpoint))),
    }
    for name in ("model.safetensors", "codec/model.safetensors", "generation_config.json"):
        file = checkpoint / name
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        found.add(talker(checkpoint))
    (checkpoint / "generation_config.json").rename(checkpoint / "other.json")
    found.add(talker(checkpoint))
    assert len(found) == 9


def test_what_changes_no_sample_does_not_change_it(checkpoint: Path, tmp_path: Path) -> None:
    before = talker(checkpoint)
    assert talker(checkpoint, precision="fp32", max_queue="3", voice_dir="/elsewhere", warm_up_seconds="1") == before
    os.utime(checkpoint / "model.safetensors", (1, 1))
    (checkpoint / ".cache").mkdir()
    (checkpoint / ".cache" / "notes").write_text("of a download")
    linked = tmp_path / "linked"
    linked.symlink_to(checkpoint)
    assert talker(linked) == before and files_digest(linked) == files_digest(checkpoint)


def test_a_link_to_a_folder_above_is_not_followed(checkpoint: Path) -> None:
    before = files_digest(checkpoint)
    (checkpoint / "codec" / "again").symlink_to(checkpoint)
    assert files_digest(checkpoint) == before


def test_nobody_waits_for_it(checkpoint: Path) -> None:
    settings = TalkerSettings.of(given(checkpoint))
    digest = PartDigest(settings)
    until(lambda: digest.get() is not None)
    assert digest.get() == part_digest(settings)


def test_a_checkpoint_that_is_gone_is_asked_for_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    (gone / "model.safetensors").symlink_to(tmp_path / "nothing")
    digest = PartDigest(TalkerSettings.of(given(gone)))
    until(lambda: digest.get() is None and "cannot be computed" in caplog.text)
    (tmp_path / "nothing").write_bytes(b"weights")
    until(lambda: digest.get() is not None)
