"""What an installed package adds to the server: a store of voices, and a detector of marks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.doubles.fakes import FakeEncoder, clip
from tests.support.installed_package import install_package
from voice_clone.errors import InvalidArgument
from voice_clone.server_settings import SpeakerCacheSettings
from voice_clone.settings import KnownVoiceSettings, Settings
from voice_clone.speakers.cache import CacheConfig, SpeakerCache
from voice_clone.speakers.opening import open_known_voices, open_store
from voice_clone.speakers.parsing import parse
from voice_clone.speakers.record import ArtifactId
from voice_clone_server import detect_mark
from voice_clone_server.demo import CLIP

pytestmark = pytest.mark.thorough

FOLDERS = '''
"""Voices in a folder that an address names."""

from pathlib import Path

from voice_clone.speakers.disk.store import FileStore, KnownInDirectory


class Folders:
    def open_store(self, address, settings):
        return FileStore(self._folder(address))

    def open_known_voices(self, address, settings):
        return KnownInDirectory(self._folder(address))

    def _folder(self, address):
        return Path(address.removeprefix("folder://"))


FOLDERS = Folders()
'''
LEVELS = '''
"""A mark that this package alone knows: a mean above zero."""

from voice_clone.marking.detectors import Detection


class LevelDetector:
    def __init__(self, device):
        self.device = device

    def pieces(self, waveform, rate):
        mark = "level" if waveform.mean() > 0.1 else None
        yield Detection(mark, float(min(1.0, abs(waveform.mean()))), 1.0, 0.0, len(waveform) / rate)
'''


def test_a_store_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"folder://{tmp_path / 'voices'}"
    monkeypatch.setenv("VOICE_CLONE_VOICE_STORE", address)
    settings = SpeakerCacheSettings.of(Settings({}))
    with pytest.raises(InvalidArgument, match=r"may begin with postgres://, postgresql://") as error:
        open_store(settings)
    assert str(tmp_path) not in str(error.value), "an address may have a password"
    points = {"voice_clone.voice_stores": {"folder": "folder_voices:FOLDERS"}}
    monkeypatch.syspath_prepend(install_package(tmp_path, "folder_voices", FOLDERS, points))

    def cache() -> SpeakerCache:
        return SpeakerCache(open_store(settings), FakeEncoder(), CacheConfig(), lambda: ("qwen3_tts",))

    first = cache()
    first.call(parse("upload", {"name": "Ada", "audio": clip()}, {"wait": True}))
    spoken = first.call(parse("resolve", {"name": "Ada", "model_type": "qwen3_tts"}, {})).artifacts
    first.close()
    second = cache()
    assert second.call(parse("resolve", {"name": "Ada", "model_type": "qwen3_tts"}, {})).artifacts == spoken
    second.close()
    known = open_known_voices(KnownVoiceSettings.of(Settings({})))
    assert [record.name for record, _ in known.latest(ArtifactId("qwen3_tts", "x_vector"))] == ["Ada"]


def test_a_detector_of_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {"voice_clone.mark_detectors": {"level": "level_marks:LevelDetector"}}
    installed = install_package(tmp_path, "level_marks", LEVELS, points)
    samples, rate = soundfile.read(CLIP, dtype="float32")
    lifted = tmp_path / "lifted.wav"
    soundfile.write(lifted, np.clip(0.5 * samples + 0.3, -1, 1), rate)
    assert detect_mark.main([str(lifted)]) == 1, "nobody knows this mark yet"
    monkeypatch.syspath_prepend(installed)
    capsys.readouterr()
    assert detect_mark.main(["--json", str(lifted), str(CLIP)]) == 1
    found = [json.loads(line)["mark"] for line in capsys.readouterr().out.splitlines()]
    assert found == ["level", None]
