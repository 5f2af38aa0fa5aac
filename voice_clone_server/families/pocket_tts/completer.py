"""Makes a checkpoint's pocket_tts.json and tokenizer.json, once.

The official sizes are in YAML files of the package pocket-tts, not beside the weights, and so are those of community
models in their repositories. Small models have their tokenizer as SentencePiece's tokenizer.model alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from voice_clone.errors import CheckpointError
from voice_clone.families.pocket_tts.config import CONFIG_FILE, config_of
from voice_clone_server.families.pocket_tts.sentencepiece import convert

PACKAGE = "pocket-tts==4.0.1"
TOKENIZER, SENTENCEPIECE = "tokenizer.json", "tokenizer.model"


def complete(folder: Path, source: str) -> list[Path]:
    """Write what is missing; returns the files.

    Args:
        source: a YAML file, or the name of one in the official package, which is fetched from pip's index; empty: the
            one that the folder is named after.

    Raises:
        CheckpointError: a file is missing or is not what it should be.
    """
    name = source or folder.resolve().name
    file = Path(name)
    content = file.read_text(encoding="utf-8") if file.is_file() else _official(name)
    try:
        values = yaml.safe_load(content)
    except yaml.YAMLError:
        values = None
    if not isinstance(values, dict):
        raise CheckpointError(f"{file.name}: not a YAML file that can be read")
    made = {"model_type": "pocket_tts", "name": file.stem, **without_paths(values)}
    config_of(made)
    written = [folder / CONFIG_FILE]
    if not (folder / TOKENIZER).is_file():
        convert(folder / SENTENCEPIECE, folder / TOKENIZER)
        written.append(folder / TOKENIZER)
    (folder / CONFIG_FILE).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    return written


def without_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the places of its files, which are in the checkpoint's folder."""
    return {
        name: without_paths(value) if isinstance(value, dict) and name != "replace_characters" else value
        for name, value in values.items()
        if not name.endswith("_path") and not name.startswith("weights_path") and name != "tokenizer"
    }


def _official(name: str) -> str:
    """A configuration in the official package."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        if subprocess.run(command, capture_output=True).returncode:
            raise CheckpointError(f"{PACKAGE} cannot be fetched by pip; give the model's YAML file: --from FILE")
        [wheel] = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as opened:
            known = {Path(each).stem: each for each in opened.namelist() if each.endswith(".yaml")}
            if name not in known:
                raise CheckpointError(f"{PACKAGE} has no {name}.yaml; give --from one of {', '.join(sorted(known))}")
            return opened.read(known[name]).decode()
