"""The models of the families are those that their cards describe."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import fields as request_fields
from tools import models
from voice_clone.family import Family
from voice_clone_server.families.cards import PACKAGES, cards
from voice_clone_server.triton_server import MODELS, ROOT

CARDS = [(package, card) for package in PACKAGES for card in cards([package])]
NAMES = [card.name for _, card in CARDS]
BY_HAND = {"speaker_cache", "speech_whole"}


@pytest.mark.parametrize(("package", "card"), CARDS, ids=NAMES)
def test_the_models_of_a_family_are_those_of_its_card(package: str, card: Family) -> None:
    for path, text in models.files(card, package).items():
        assert (MODELS / path).read_text(encoding="utf-8") == text, f"{path}: python -m tools.models"


def test_every_other_model_is_written_by_hand() -> None:
    written = {path.split("/")[0] for path in models.wanted(PACKAGES)}
    there = {each.name for each in MODELS.iterdir() if (each / "config.pbtxt").exists()}
    assert there - written == BY_HAND


def test_client_gateway_and_documents_have_the_fields_of_the_table() -> None:
    for path, text in request_fields.wanted().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: python -m tools.models"


def test_a_document_without_marks_is_not_written() -> None:
    with pytest.raises(ValueError, match="inputs: written by"):
        request_fields.with_part("# A document\n", "inputs", "| a row |\n")


@pytest.mark.parametrize(("package", "card"), CARDS, ids=NAMES)
def test_a_card_agrees_with_itself(package: str, card: Family) -> None:
    made = [name for part in card.encoders for name in part.artifacts]
    assert made == [each.name for each in card.artifacts]
    assert len(card.encoders) in (1, len(card.fingerprints))
    assert card.instructions in ("", *(each.name for each in card.options))
    assert not any('"' in f"{each.meaning}{each.takes}" for each in card.options), "a config.pbtxt cannot quote it"
    assert card.decoder_of in ("", *NAMES)
    if "first audio" in card.cells:
        assert (card.cells["first audio"] == "one frame") == (card.chunk_frames[:1] == (1,))
    for part in card.encoders:
        module, function = part.load.split(".")
        assert hasattr(importlib.import_module(f"{package}.{module}"), function)


def test_checkpoints_are_looked_at_without_torch() -> None:
    code = """
import sys
from voice_clone_server.families.cards import PACKAGES, cards, function
for package in PACKAGES:
    for card in cards([package]):
        for name in (*card.configurations, *filter(None, [card.check_shared])):
            assert callable(function(package, name))
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_models_of_other_packages_are_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    arguments = ["models", "voice_clone.families.voxtral", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*arguments, "--check"])
    assert models.main() == 1 and not list(tmp_path.iterdir())
    monkeypatch.setattr("sys.argv", arguments)
    assert models.main() == 0 and (tmp_path / "voxtral" / "1" / ".gitkeep").exists()
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", [*arguments, "--check"])
    assert models.main() == 0 and not capsys.readouterr().out
    assert {each.name for each in tmp_path.iterdir()} == {each.name for each in MODELS.glob("voxtral*")}
