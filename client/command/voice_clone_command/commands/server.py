"""The server: stats, models and doctor, and mcp, which offers it to language models."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from voice_clone_client.client import Client
from voice_clone_client.errors import ConnectionFailed, Unsupported, VoiceCloneError
from voice_clone_client.servers.addresses import server

from ..audio_file import MISSING, formats, has_codecs
from ..player import PlayerFailed, find_player
from .common import add_mark, command, connection, print_json, print_line
from .error_hints import explained

MISSING_SDK = "voice-clone mcp needs the SDK of the protocol: pip install './client[mcp]'"


def add(commands: Any) -> None:
    command(commands, "stats", _stats, "counters of the voice cache, as JSON")
    models = command(commands, "models", _models, "the model families of the server, its default first")
    models.add_argument("--details", action="store_true", help="and what each takes in --option of speak")
    command(commands, "doctor", _doctor, "check the server, its models and voices, and the player of this machine")
    mcp = command(commands, "mcp", _mcp, "serve the Model Context Protocol on stdin and stdout: list voices, and speak")
    add_mark(mcp)
    mcp.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="a model may also speak into new audio files here (default: it may not)",
    )


def _stats(client: Client, parsed: argparse.Namespace) -> None:
    print_json(client.stats())


def _models(client: Client, parsed: argparse.Namespace) -> None:
    for model, family in client.families().items():
        print_line(model)
        for name, meaning in family.options.items() if parsed.details else ():
            print_line(f"  {name}\t{meaning}")


def _doctor(client: Client, parsed: argparse.Namespace) -> int:
    """Each check prints a line; one that fails does not keep the others from being made."""
    healthy = [_check("server", lambda: _server(client, server(parsed.url)), client, parsed)]
    if healthy[0]:
        healthy.append(_check("model", lambda: _families(client, parsed), client, parsed))
        healthy.append(_check("voices", lambda: str(len(client.list())), client, parsed))
    print_line(f"formats\t{', '.join(formats())}{'' if has_codecs() else f' ({MISSING} adds others)'}")
    try:
        print_line(f"player\t{find_player()}")
    except PlayerFailed as error:
        print_line(f"player\t{error}")  # no failure: a speech can be saved
    return 0 if all(healthy) else 1


def _check(name: str, check: Callable[[], str], client: Client, parsed: argparse.Namespace) -> bool:
    try:
        print_line(f"{name}\t{check()}")
    except VoiceCloneError as error:
        print_line(f"{name}\tFAILED: {' '.join(explained(error, client, parsed).split())}")
        return False
    return True


def _server(client: Client, url: str) -> str:
    client.stats()
    return f"answers at {url}"


def _families(client: Client, parsed: argparse.Namespace) -> str:
    models = [parsed.model] if parsed.model else client.models()
    if not models:
        raise Unsupported("the server has no model family")
    if unready := [model for model in models if not client.ready(model=model)]:
        raise ConnectionFailed(f"{' and '.join(unready)} is not ready")
    return f"{' and '.join(models)} {'is' if len(models) == 1 else 'are'} ready"


def _mcp(client: Client, parsed: argparse.Namespace) -> None:
    if parsed.folder is not None and not parsed.folder.is_dir():
        parsed.parser.error(f"--folder {parsed.folder} is no folder")
    try:
        from ..mcp_server import mcp_server
    except ImportError:
        parsed.parser.error(MISSING_SDK)
    mcp_server(connection(parsed), parsed.folder).run("stdio")
