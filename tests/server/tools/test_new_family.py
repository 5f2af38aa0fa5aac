"""tools/new_family: what it writes speaks before anything is changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from voice_clone_client import Client

import voice_clone.families
from tests.support.servers.running import SETTINGS, running
from tools import new_family
from voice_clone_server.triton_server import MODELS, ROOT

CLIP = ROOT / "tools" / "data" / "reference.wav"


@pytest.mark.thorough
def test_a_new_family_speaks_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new_family.main(["tenor_two", "--output", str(tmp_path)]) == 0
    package, said = tmp_path / "tenor_two", capsys.readouterr().out
    assert str(package / "models") in said and "chirp" not in "".join(
        file.read_text(encoding="utf-8").lower() for file in package.rglob("*") if file.suffix in (".py", ".pbtxt")
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(tmp_path)]))
    with (
        running(package / "checkpoint", tmp_path, [MODELS, package / "models"], **SETTINGS) as server,
        Client(server.url) as client,
    ):
        client.upload("Ada", CLIP, reference_text="The words of the clip.", wait=True)
        knobs: dict[str, Any] = {"voice": "Ada", "max_frames": 20, "top_k": 5, "options": {"vibrato": 3}}
        first, second = (client.speak("Good morning.", seed=7, **knobs).read()[0] for _ in range(2))
        assert np.allclose(first, second, atol=1e-5) and first.any()  # a state that is cached was made in another batch


def test_it_may_be_one_of_this_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, path in (("FAMILIES", tmp_path), ("MODELS", tmp_path / "models"), ("ROOT", tmp_path)):
        monkeypatch.setattr(new_family, name, path)
    monkeypatch.setattr(voice_clone.families, "__path__", [*voice_clone.families.__path__, str(tmp_path)])
    assert new_family.main(["tenor_three", "--output", str(tmp_path)]) == 0
    model = (tmp_path / "models" / "tenor_three_talker" / "1" / "model.py").read_text(encoding="utf-8")
    assert "from voice_clone.families.tenor_three.talker import" in model
    assert (tmp_path / "checkpoints" / "tenor_three" / "tenor_three.json").is_file()
    assert "tools/serve --checkpoint" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("Tenor", "lower-case letters"),
        ("ten-or", "lower-case letters"),
        ("class", "lower-case letters"),
        ("_tenor", "must not begin with _"),
        ("voxtral_two", "voxtral"),
        ("json", "Python package already"),
    ],
)
def test_a_name_that_no_family_can_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, right: str
) -> None:
    with pytest.raises(SystemExit):
        new_family.main([name, "--output", str(tmp_path)])
    assert right in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_what_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tenor").mkdir()
    with pytest.raises(SystemExit):
        new_family.main(["tenor", "--output", str(tmp_path)])
    assert str(tmp_path / "tenor") in capsys.readouterr().err and not list((tmp_path / "tenor").iterdir())
