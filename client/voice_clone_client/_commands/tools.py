"""Tools for language models: mcp."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..client import Client
from .common import command, connection

MISSING = "voice-clone mcp needs the SDK of the protocol: pip install './client[mcp]'"


def add(commands: Any) -> None:
    """Add the command."""
    mcp = command(commands, "mcp", _mcp, "serve the Model Context Protocol on stdin and stdout: list voices, and speak")
    mcp.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="a model may also speak into new audio files here (default: it may not)",
    )


def _mcp(client: Client, parsed: argparse.Namespace) -> None:
    if parsed.folder is not None and not parsed.folder.is_dir():
        parsed.parser.error(f"--folder {parsed.folder} is no folder")
    try:
        from ..mcp_server import mcp_server
    except ImportError:
        parsed.parser.error(MISSING)
    mcp_server(connection(parsed), parsed.folder).run("stdio")
