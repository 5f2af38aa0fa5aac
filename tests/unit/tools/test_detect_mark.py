"""tools/detect_mark: what it says of marked, of other and of broken files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voice_clone.audio import resample
from voice_clone.marking.marker import PerthMarker
from voice_clone_server import detect_mark
from voice_clone_server.demo import CLIP

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A marked file, as other programs write it: FLAC, 16 bits, two channels."""
    samples, rate = soundfile.read(CLIP, dtype="float32")
    marker = PerthMarker(rate)
    path = tmp_path_factory.mktemp("marked") / "marked.flac"
    [made] = marker.mark([marker.open()], [samples])
    soundfile.write(path, np.stack([made, made], 1), rate)
    return path


def test_files(marked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert detect_mark.main([str(marked)]) == 0
    assert capsys.readouterr().out.startswith(f"{marked}: marked as synthetic: perth (confidence ")
    assert detect_mark.main([str(marked), str(CLIP)]) == 1
    assert f"{CLIP}: no mark (confidence 0.0" in capsys.readouterr().out


def test_json_and_a_file_at_another_speed(marked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples, rate = soundfile.read(marked, dtype="float32")
    faster = tmp_path / "faster.wav"
    soundfile.write(faster, resample(np.ascontiguousarray(samples[:, 0]), round(1.05 * rate), rate), rate)
    assert detect_mark.main(["--json", str(faster)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == str(faster) and found["mark"] == "perth" and abs(found["speed"] - 1.05) < 0.015
    assert detect_mark.main([str(faster)]) == 0
    assert "times its speed)" in capsys.readouterr().out


def test_what_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, missing = tmp_path / "broken.wav", tmp_path / "missing.wav"
    broken.write_bytes(b"no audio")
    assert detect_mark.main([str(broken)]) == 2
    assert f"tools/detect_mark: {broken}: the audio cannot be decoded" in capsys.readouterr().err
    assert detect_mark.main([str(missing)]) == 2
    assert capsys.readouterr().err == f"tools/detect_mark: {missing}: No such file or directory\n"
