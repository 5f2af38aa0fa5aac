"""Marks of synthetic speech: detect."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from ..client import Client
from ..types import Detection
from .common import command, print_json, print_line


def add(commands: Any) -> None:
    """Add the command."""
    detect = command(commands, "detect", _detect, "look for the mark of synthetic speech in a file", {"audio": "FILE"})
    detect.add_argument("file", help="WAV, FLAC, OGG or MP3, up to 10 minutes; m4a, mp4, webm, amr up to 30 s")
    detect.add_argument("--json", action="store_true", help="print JSON")


def _detect(client: Client, parsed: argparse.Namespace) -> None:
    found = client.detect(parsed.file)
    if parsed.json:
        print_json(asdict(found))
    else:
        print_line(_words(found))


def _words(found: Detection) -> str:
    if found.mark is None:
        return f"no mark\tconfidence {found.confidence:.2f}"
    start = f"\tfrom {found.start:.0f} s on" if found.start else ""
    speed = f"\tat {found.speed:g} times its speed" if found.speed != 1 else ""
    return f"marked as synthetic: {found.mark}\tconfidence {found.confidence:.2f}{start}{speed}"
