"""The commands `design` and `keep`: voices that are made from descriptions."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from voice_clone_client import designs
from voice_clone_client.client import Client
from voice_clone_client.errors import InvalidArgument
from voice_clone_client.fields import MEANINGS

from .common import add_mark, command, report, saved
from .voices import registered

FIELDS = ("text", "description", "model", "seed")


def add(commands: Any) -> None:
    design = command(commands, "design", _design, "let a model make voices of a description, as files to hear")
    design.add_argument("description", help="of a voice, in words")
    design.add_argument("--text", required=True, help="what the candidates say: a sentence or two")
    design.add_argument(
        "--seed", type=int, action="append", help="of a candidate; may be repeated (default: three new)"
    )
    design.add_argument("--language", help=MEANINGS["language"])
    add_mark(design)
    design.add_argument("-o", "--output", default=".", metavar="DIR", help="where the files go (default: here)")
    keep = command(commands, "keep", _keep, "register a voice that design has made")
    keep.add_argument("name")
    keep.add_argument("file", help="a WAV file of design; the JSON file beside it says how it was made")
    keep.add_argument("--consent", help="how the speaker consented, such as: no person's voice")
    keep.add_argument("--description", help="free text")
    keep.add_argument("--shared", action="store_true", help="gateway keys that own voices may use it, too")
    keep.add_argument("--replace", action="store_true", help="replace the voice of that name (default: refuse)")


def _design(client: Client, parsed: argparse.Namespace) -> None:
    """Write one WAV and one JSON file for each candidate, named after its seed."""
    folder = Path(parsed.output)
    folder.mkdir(parents=True, exist_ok=True)
    candidates = client.design(
        parsed.description, parsed.text, seeds=parsed.seed or 3, model=parsed.model, language=parsed.language
    )
    for candidate in candidates:
        file = folder / f"{candidate.seed}.wav"
        saved(str(file), designs.wav(candidate.samples, candidate.sample_rate))
        made = {name: getattr(candidate, name) for name in FIELDS}
        text = json.dumps(made, ensure_ascii=False, indent=2) + "\n"
        saved(str(file.with_suffix(".json")), text.encode(errors="surrogateescape"))
        report(parsed, f"{file}: {len(candidate.samples) / candidate.sample_rate:.1f} s, by {candidate.model}")


def _keep(client: Client, parsed: argparse.Namespace) -> None:
    beside = Path(parsed.file).with_suffix(".json")
    try:
        made = json.loads(beside.read_text(encoding="utf-8"))
        text, description, model, seed = (made[name] for name in FIELDS)
    except (ValueError, KeyError, TypeError):
        raise InvalidArgument(
            f"{beside} does not say how a voice was made; give a file of voice-clone design"
        ) from None
    voice = client.upload(
        parsed.name,
        parsed.file,
        reference_text=text,
        consent=parsed.consent,
        description=parsed.description,
        wait=True,
        replace=parsed.replace,
        shared=parsed.shared,
        design=description,
        design_model=model,
        design_seed=seed,
    )
    registered(voice, parsed)
