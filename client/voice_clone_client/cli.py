"""The command `voice-clone`: voices and speech of a Triton server in the shell.

    voice-clone upload ada ada.wav --text "What she says in the clip."
    voice-clone speak "Any other sentence." --voice ada --play
    voice-clone speak - --voice ada -o book.wav < book.txt
    voice-clone design "An old captain." --text "Good morning, all of you." -o captains
    voice-clone keep Captain captains/7.wav
    voice-clone embedding blend ada ben --weight 0.3 --register between

Exit codes: 0 done, 1 failed (one line on stderr says why; audio that came before is kept), 2 wrong usage,
130 interrupted, 141 the reader of the output has left (as `head` does).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ._commands import designs, embeddings, marks, server, speaking, voices
from ._commands.common import add_connection, complain, connection, in_words
from ._standard_output import until_reader_leaves
from ._version import __version__
from .client import Client
from .errors import VoiceCloneError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return until_reader_leaves(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        with Client(**connection(parsed)) as client:
            code: int | None = parsed.run(client, parsed)
        return code or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise  # of stdout
    except VoiceCloneError as error:
        return _fail(f"{error.slug}: {in_words(error.text, parsed.parser)}")
    except UnicodeDecodeError as error:
        return _fail(f"the text is not UTF-8: {error}")
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(message: str) -> int:
    complain(message)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="voice-clone", description="Speak in cloned voices, on a Triton server.")
    parser.add_argument("--version", action="version", version=f"voice-clone {__version__}")
    add_connection(parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for subject in (voices, designs, speaking, embeddings, marks, server):
        subject.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
