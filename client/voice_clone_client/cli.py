"""The command `voice-clone`: voices and speech of a Triton server in the shell.

    voice-clone upload ada ada.wav --text "What she says in the clip."
    voice-clone speak "Any other sentence." --voice ada --play
    voice-clone speak - --voice ada -o book.wav < book.txt
    voice-clone embedding blend ada ben --weight 0.3 --register between

Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ._channel import tls_credentials
from ._commands import embeddings, server, speaking, voices
from ._commands.common import complain
from ._version import __version__
from .client import Client
from .errors import VoiceCloneError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        with Client(
            parsed.url,
            model=parsed.model,
            timeout=parsed.timeout,
            credentials=tls_credentials(parsed.ca) if parsed.tls or parsed.ca else None,
            token=parsed.token,
        ) as client:
            parsed.run(client, parsed)
        return 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports it again at its exit
        return _fail("the reader of the output closed it")
    except VoiceCloneError as error:
        return _fail(f"{error.slug}: {error}")
    except UnicodeDecodeError as error:
        return _fail(f"the text is not UTF-8: {error}")
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(message: str) -> int:
    complain(message)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="voice-clone", description="Speak in cloned voices, on a Triton server.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--url", default="localhost:8001", help="host:port of the server's gRPC endpoint (%(default)s)")
    parser.add_argument("--model", help="the model family that speaks (default: the server's)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="maximum seconds of any command but speak (%(default)s)"
    )
    parser.add_argument("--tls", action="store_true", help="connect by TLS, verified with the system's authorities")
    parser.add_argument("--ca", metavar="FILE", help="connect by TLS, verified with the authority in this PEM file")
    parser.add_argument(
        "--token",
        default=os.environ.get("VOICE_CLONE_TOKEN"),
        help="the server's write token, if it has one (default: VOICE_CLONE_TOKEN, which other users cannot see)",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for subject in (voices, speaking, embeddings, server):
        subject.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
