"""What all commands share: how they are added to the command line, and how they print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from ..client import Client
from ..types import Voice

Command = Callable[[Client, argparse.Namespace], None]


def command(commands: Any, name: str, run: Command, text: str) -> argparse.ArgumentParser:
    """Add a command, and return its parser.

    Args:
        commands: of `add_subparsers`.
        name: of the command.
        run: executes it; an error that it raises becomes one line on stderr.
        text: its help.
    """
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(run=run, parser=parser)
    return parser


def summary(voice: Voice) -> str:
    """One line of tab-separated columns: name, generation, seconds of its clip, states by model type and mode."""
    clip = "embedding" if voice.duration is None else f"{voice.duration:.1f} s"
    states = ", ".join(f"{entry.model_type} {entry.mode} {entry.state}" for entry in voice.artifacts)
    return f"{voice.name}\tgeneration {voice.generation}\t{clip}\t{states}"


def print_line(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print_line(json.dumps(value, indent=2, ensure_ascii=False))


def complain(message: str) -> None:
    """Print one line on stderr."""
    sys.stderr.write(f"voice-clone: {' '.join(message.split())}\n")
