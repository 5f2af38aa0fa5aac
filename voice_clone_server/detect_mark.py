"""Looks for the mark that this server, or resemble-perth, puts into synthetic speech: docs/provenance.md.

Reads WAV, FLAC, OGG and MP3 files. Exit status: 0 all files are marked, 1 some are not, 2 a file cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from voice_clone_program.arguments import Parser

from voice_clone.audio import ClipLimits, decode
from voice_clone.errors import VoiceCloneError
from voice_clone.marking.detectors import SHORTEST, Detection, Detector, detect, installed_detectors
from voice_clone_server.program import program

LIMITS = ClipLimits(max_bytes=1 << 30, min_seconds=SHORTEST, max_seconds=4 * 3600)


def main(arguments: Sequence[str] | None = None) -> int:
    name = program("detect_mark")
    parser = Parser(prog=name, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="one JSON object a file")
    given = parser.parse_args(arguments)
    try:
        detectors = installed_detectors()
        found = [_detect(detectors, path, given.json) for path in given.files]
    except OSError as error:
        print(f"{name}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except VoiceCloneError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0 if all(found) else 1


def _detect(detectors: Sequence[Detector], path: Path, as_json: bool) -> bool:
    """Look for the mark in a file, and print what was found."""
    try:
        clip = decode(path.read_bytes(), LIMITS)
    except VoiceCloneError as error:
        raise type(error)(f"{path}: {error}") from None
    found = detect(detectors, clip.waveform, clip.sample_rate)
    print(json.dumps({"file": str(path), **asdict(found)}) if as_json else f"{path}: {_words(found)}", flush=True)
    return found.marked


def _words(found: Detection) -> str:
    if not found.marked:
        return f"no mark (confidence {found.confidence:.2f})"
    where = f" from {found.start:.0f} s on" if found.start else ""
    speed = f", at {found.speed:g} times its speed" if found.speed != 1 else ""
    return f"marked as synthetic: {found.mark} (confidence {found.confidence:.2f}{where}{speed})"


if __name__ == "__main__":
    sys.exit(main())
