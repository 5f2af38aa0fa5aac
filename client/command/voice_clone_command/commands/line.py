"""The command line of `voice-clone`: all commands, and what becomes of their errors."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from voice_clone_client import __version__
from voice_clone_client.client import Client
from voice_clone_client.errors import VoiceCloneError
from voice_clone_program.arguments import Parser
from voice_clone_program.running import ReaderLeft

from . import batch, book, designs, embeddings, marks, server, speaking, voices
from .common import add_connection, check_stdin, complain, connection, in_words
from .error_hints import explained


def run_line(arguments: Sequence[str] | None) -> int:
    """Run one command; returns the exit code.

    Raises:
        OSError: a file or stream fails.
    """
    parsed = _parser().parse_args(arguments)
    check_stdin(parsed)
    try:
        with Client(**connection(parsed)) as client:
            try:
                code: int | None = parsed.run(client, parsed)
            except VoiceCloneError as error:
                complain(f"{error.slug}: {in_words(explained(error, client, parsed), parsed.parser)}")
                return 1
        return code or 0
    except VoiceCloneError as error:  # of the connection's options
        complain(f"{error.slug}: {in_words(error.text, parsed.parser)}")
    except BrokenPipeError:
        raise ReaderLeft from None
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="voice-clone", description="Speak in cloned voices, on a Triton server.")
    parser.add_argument("--version", action="version", version=f"voice-clone {__version__}")
    add_connection(parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for subject in (voices, designs, speaking, book, batch, embeddings, marks, server):
        subject.add(commands)
    return parser
