"""Voices that come with a server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.doubles.fakes import FakeEncoder, Voices, clip
from voice_clone.errors import InvalidArgument

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]


@pytest.fixture
def source(make_voices: Make) -> Voices:
    """The server that the voices come from."""
    return make_voices("source")


@pytest.fixture
def folder(tmp_path: Path, source: Voices) -> Path:
    """Ada and Bob in one bundle, Cid in another, without audio."""
    source.upload("Ada", 1, reference_text="Hello.")
    source.upload("Bob", 2)
    path = tmp_path / "preloaded"
    path.mkdir()
    (path / "1.voices").write_bytes(source.call("export").artifacts or b"")
    source.upload("Cid", 3, reference_text="Hello.")
    (path / "2.voices").write_bytes(source.call("export", {"include_audio": False}, name="Cid").artifacts or b"")
    path.chmod(0o555)
    return path


def names(voices: Voices, owner: str | None = None) -> list[str]:
    options = {} if owner is None else {"owner": owner}
    return [speaker["name"] for speaker in voices.call("list", options).result["speakers"]]


def test_they_are_there_at_once_with_their_artifacts_and_for_every_owner(
    make_voices: Make, source: Voices, folder: Path
) -> None:
    voices = make_voices("target")
    voices.cache.preload(folder)
    assert names(voices) == names(voices, "anybody") == ["Ada", "Bob", "Cid"]
    for name in ("Ada", "Bob", "Cid"):
        assert voices.resolve(name).artifacts == source.resolve(name).artifacts
    assert voices.encoder.extractions == 0


def test_another_start_leaves_what_is_there_and_brings_back_what_was_deleted(make_voices: Make, folder: Path) -> None:
    voices = make_voices("target")
    own = voices.upload("Ada", 9)["generation"]
    voices.cache.preload(folder)
    voices.call("delete", name="Bob")
    first = {name: voices.get(name)["generation"] for name in ("Ada", "Cid")}
    assert first["Ada"] == own
    voices.restart()
    voices.cache.preload(folder)
    assert {name: voices.get(name)["generation"] for name in ("Ada", "Cid")} == first
    assert names(voices) == ["Ada", "Bob", "Cid"]


def test_files_that_are_no_bundles_hold_nothing_up(
    make_voices: Make, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.chmod(0o755)
    bundle = (folder / "1.voices").read_bytes()
    (folder / "0.damaged").write_bytes(bundle[:-1])
    (folder / "0.empty").touch()
    (folder / "0.wav").write_bytes(clip(1))
    (folder / ".hidden").write_bytes(b"no bundle")
    (folder / "0.folder").mkdir()
    voices = make_voices("target")
    with caplog.at_level(logging.ERROR):
        voices.cache.preload(folder)
    assert names(voices) == ["Ada", "Bob", "Cid"]
    assert [message.split("'")[1] for message in caplog.messages] == ["0.damaged", "0.empty", "0.wav"]
    assert str(folder) not in caplog.text


def test_voices_of_another_checkpoint_are_made_again_or_reported(
    make_voices: Make, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    voices = make_voices("target", encoder=FakeEncoder(checkpoint="b"))
    voices.cache.preload(folder)
    assert names(voices) == ["Ada", "Bob"]  # there is nothing to make Cid from
    assert "2.voices" in caplog.text and "another checkpoint" in caplog.text
    assert voices.resolve("Ada").result["status"] in ("miss", "hit", "restored") and voices.encoder.extractions


def test_the_limit_of_voices_holds(make_voices: Make, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    voices = make_voices("target", max_speakers=1)
    voices.cache.preload(folder)
    assert names(voices) == ["Cid"]  # a bundle comes whole or not at all
    assert "at most 1" in caplog.text


def test_a_folder_that_is_not_there_is_reported(voices: Voices, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="preloaded_voices names no folder"):
        voices.cache.preload(tmp_path / "gone")
