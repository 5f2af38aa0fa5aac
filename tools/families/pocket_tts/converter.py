"""Makes a checkpoint's pocket_tts.json and tokenizer.json, once.

The official sizes are in YAML files of the package pocket-tts (`pocket_tts/config/english.yaml`), not beside the
weights. Small models have their tokenizer as SentencePiece's tokenizer.model alone. model.safetensors stays as it is.

    .venv/bin/python -m tools.families.pocket_tts.converter english.yaml CHECKPOINT
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from voice_clone_client._arguments import Parser

from tools.families.pocket_tts.tokenizer import convert
from tools.families.weight_files import write_json
from voice_clone.errors import CheckpointError
from voice_clone.families.pocket_tts.config import CONFIG_FILE, config_of

TOKENIZER, MODEL = "tokenizer.json", "tokenizer.model"


def without_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the places of its files, which are in the checkpoint's folder."""
    return {
        name: without_paths(value) if isinstance(value, dict) and name != "replace_characters" else value
        for name, value in values.items()
        if not name.endswith("_path") and not name.startswith("weights_path") and name != "tokenizer"
    }


def convert_checkpoint(configuration: Path, folder: Path) -> list[Path]:
    """Write what is missing; returns the files.

    Raises:
        CheckpointError: a file is missing or is not what it should be.
    """
    try:
        values = yaml.safe_load(configuration.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        values = None
    if not isinstance(values, dict):
        raise CheckpointError(f"{configuration.name}: not a YAML file that can be read")
    made = {"model_type": "pocket_tts", "name": configuration.stem, **without_paths(values)}
    config_of(made)
    written = [folder / CONFIG_FILE]
    if not (folder / TOKENIZER).is_file():
        convert(folder / MODEL, folder / TOKENIZER)
        written.append(folder / TOKENIZER)
    write_json(folder / CONFIG_FILE, made)
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = Parser(prog="python -m tools.families.pocket_tts.converter", description=__doc__)
    parser.add_argument("configuration", type=Path, metavar="YAML", help="the model's, of the package pocket-tts")
    parser.add_argument("folder", type=Path, metavar="CHECKPOINT", help="has model.safetensors and a tokenizer")
    given = parser.parse_args(arguments)
    try:
        for file in convert_checkpoint(given.configuration, given.folder):
            print(file)
    except CheckpointError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
