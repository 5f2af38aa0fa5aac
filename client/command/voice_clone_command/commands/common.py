"""What all commands share: how they are added to the command line, and how they print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, get_args

from voice_clone_client.client import Client
from voice_clone_client.errors import worded
from voice_clone_client.servers.addresses import DEFAULT, PROXY, SERVER, TOKEN
from voice_clone_client.servers.channel import tls_credentials
from voice_clone_client.sources import Source
from voice_clone_client.types import Mark, Voice
from voice_clone_program.running import naming
from voice_clone_program.whole_file import whole_file

from ..output import write_stdout

Command = Callable[[Client, argparse.Namespace], int | None]
FILES = ("file", "reference", "prompt", "embedding", "text_file", "sign_key", "sign_certificates", "ca")
"""Options whose file may be `-`, which is stdin."""


# What the command calls a parameter whose option has another name: the first of these that the command has.
_NAMES = {
    "model_type": ("model",),
    "name": ("name", "register"),
    "audio": ("file",),
    "bundle": ("file",),
    "reference_text": ("reference_text", "text"),
    "reference_audio": ("reference",),
    "speaker_embedding": ("embedding",),
    "voice_prompt": ("prompt",),
    "timeout": ("wait_seconds", "timeout"),
    "seeds": ("seed",),
}


def command(commands: Any, name: str, run: Command, text: str) -> argparse.ArgumentParser:
    """Add a command, and return its parser.

    Args:
        commands: of `add_subparsers`.
        name: of the command.
        run: executes it and returns the exit code, None for 0; an error that it raises becomes one line on stderr.
        text: its help.
    """
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(run=run, parser=parser)
    add_connection(parser, argparse.SUPPRESS)
    return parser


def add_connection(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the options of the connection, which may stand before the command and behind it.

    Args:
        default: of all; None: each has its own.
    """

    def usual(value: object) -> Any:
        return value if default is None else default

    group = parser.add_argument_group("connection")
    group.add_argument(
        "--url",
        default=default,
        help=f"host:port of the server's gRPC endpoint; several of a fleet, separated by commas; or dns:///name:port "
        f"(default: {SERVER}, or else {DEFAULT})",
    )
    group.add_argument("--model", default=default, help="the model family that speaks (default: the server's)")
    group.add_argument(
        "--timeout", type=float, default=usual(60.0), help="maximum seconds of any command but speak (default: 60)"
    )
    group.add_argument(
        "--tls",
        action="store_true",
        default=usual(False),
        help="connect by TLS, verified with the system's authorities",
    )
    group.add_argument(
        "--ca", metavar="FILE", default=default, help="connect by TLS, verified with the authority in this PEM file"
    )
    group.add_argument(
        "--token",
        default=default,
        help=f"the server's write token, if it has one (default: {TOKEN}, which other users cannot see)",
    )
    group.add_argument(
        "--proxy",
        metavar="URL",
        default=default,
        help="http://host:port of an HTTP proxy to the server; http_proxy and the like are not used "
        f"(default: {PROXY}, or else none)",
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", default=usual(False), help="print only data, warnings and errors"
    )


def add_mark(parser: argparse.ArgumentParser) -> None:
    """Add the option of the commands that speak."""
    parser.add_argument(
        "--mark",
        choices=get_args(Mark),
        help="ask that the speech is marked as synthetic, where the server's setting VOICE_CLONE_MARK is requested; a "
        "server that marks nothing refuses on and required; with required a speech that could not be marked is an "
        "error (default: what the server's setting says)",
    )


def connection(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a client, from the options of the connection."""
    return {
        "url": parsed.url,
        "model": parsed.model,
        "timeout": parsed.timeout,
        "credentials": tls_credentials(parsed.ca and given(parsed.ca)) if parsed.tls or parsed.ca else None,
        "token": parsed.token,
        "mark": getattr(parsed, "mark", None),
        "proxy": parsed.proxy,
    }


def in_words(text: str, parser: argparse.ArgumentParser) -> str:
    """Put a text about parameters, such as an error's, into the words of a command: `reference_text` is --text."""
    known = {action.dest: action for action in parser._actions}

    def word(name: str, value: str) -> str:
        if name.startswith("options.") and "options" in known:
            return f"--option {name.removeprefix('options.')}"
        action = next((known[dest] for dest in _NAMES.get(name, (name,)) if dest in known), None)
        if action is None:
            return f"{name} {value}".rstrip()
        if name == "token":
            return "--token or VOICE_CLONE_TOKEN"  # other users cannot see the second
        if not action.option_strings:
            return str(action.metavar or action.dest).upper()
        if action.nargs == 0:  # a switch
            return action.option_strings[-1 if value == "false" else 0]
        option = next(each for each in action.option_strings if each.startswith("--"))
        return f"{option} {value}".rstrip()

    return worded(text, word)


def given(path: str) -> Source:
    """Return the file that an option names; stdin for `-`."""
    return sys.stdin.buffer if path == "-" else path


def check_stdin(parsed: argparse.Namespace) -> None:
    """Exit with code 2 if stdin is to be two things."""
    wanted = list[Any]()
    for each in (getattr(parsed, name, None) for name in FILES):
        wanted += each if isinstance(each, list) else [each]
    if parsed.run.__name__ == "_speak":
        wanted.append(parsed.text)
    if wanted.count("-") > 1:
        parsed.parser.error("- is stdin, which can be only one of the files and the text")


def summary(voice: Voice) -> str:
    """Write a line of tab-separated columns: name, generation, seconds of its clip, states by model type and mode."""
    clip = "embedding" if voice.duration is None else f"{voice.duration:.1f} s"
    states = ", ".join(f"{entry.model_type} {entry.mode} {entry.state}" for entry in voice.artifacts)
    return f"{voice.name}\tgeneration {voice.generation}\t{clip}\t{states}"


def saved(path: str, data: bytes | Iterable[bytes]) -> int:
    """Write a file, or stdout for `-`, of its bytes or of parts of them. Returns their number."""
    size = 0
    with ExitStack() as stack:
        write: Callable[[bytes], object] = write_stdout
        if path != "-":
            stack.enter_context(naming(path))
            write = stack.enter_context(whole_file(path)).write
        for part in [data] if isinstance(data, bytes) else data:
            write(part)
            size += len(part)
    return size


def report(parsed: argparse.Namespace, line: str) -> None:
    """Print that something was done, unless that is not wanted, or stdout has the data."""
    if not parsed.quiet and getattr(parsed, "output", None) != "-":
        print_line(line)


def print_line(line: str) -> None:
    """Print a line at once."""
    with naming("stdout"):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows: in columns with titles on a terminal, separated by tabs elsewhere."""
    if sys.stdout.isatty() and rows:
        rows = [titles, *rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    else:
        lines = ["\t".join(row) for row in rows]
    for line in lines:
        print_line(line)


def print_json(value: object) -> None:
    print_line(json.dumps(value, indent=2, ensure_ascii=False))


def complain(message: str) -> None:
    """Print one line on stderr."""
    sys.stderr.write(f"voice-clone: {' '.join(message.split())}\n")
