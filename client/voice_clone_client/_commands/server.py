"""The server: stats, models and doctor."""

from __future__ import annotations

import argparse
from typing import Any

from .._player import PlayerFailed, find_player
from ..client import Client
from ..errors import ConnectionFailed, Unsupported
from .common import command, print_json, print_line


def add(commands: Any) -> None:
    """Add the commands."""
    command(commands, "stats", _stats, "counters of the voice cache, as JSON")
    command(commands, "models", _models, "the model families of the server, its default first")
    command(commands, "doctor", _doctor, "check the server, its models and voices, and the player of this machine")


def _stats(client: Client, parsed: argparse.Namespace) -> None:
    print_json(client.stats())


def _models(client: Client, parsed: argparse.Namespace) -> None:
    for model in client.models():
        print_line(model)


def _doctor(client: Client, parsed: argparse.Namespace) -> None:
    voices = client.list()
    models = [parsed.model] if parsed.model else client.models()
    if not models:
        raise Unsupported(f"a server answers at {parsed.url}, but it has no model family")
    for model in models:
        if not client.ready(model=model):
            raise ConnectionFailed(f"a server answers at {parsed.url}, but its model {model} is not ready")
        print_line(f"model\t{model} is ready at {parsed.url}")
    print_line(f"voices\t{len(voices)}")
    try:
        print_line(f"player\t{find_player()}")
    except PlayerFailed as error:
        print_line(f"player\t{error}")
