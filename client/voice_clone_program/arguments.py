"""The parser of all command lines: what is wrong is said in one line."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, NoReturn

from .names import meant
from .running import naming

_CHOICE = re.compile(r"(.*)invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)
_UNKNOWN = re.compile(r"unrecognized arguments: (\S+)")


class Parser(argparse.ArgumentParser):
    """Says what is wrong, what may have been meant, and where the options are explained, without a list of them all."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        hint = ""
        if choice := _CHOICE.fullmatch(message):
            choices = choice[3].replace("'", "").split(", ")
            hint = meant(choice[2], choices)
            if hint and len(choices) > 9:
                message = f"{choice[1]}invalid choice: {choice[2]!r}"
        elif unknown := _UNKNOWN.match(message):
            hint = meant(unknown[1].partition("=")[0], self._option_string_actions)
        self.exit(
            2,
            " ".join(f"{self.prog}: error: {message}{hint and '; ' + hint} (usage: {self.prog} --help)".split()) + "\n",
        )

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write the message, and fail where argparse would be silent: if it cannot be written."""
        with naming("stdout" if file is sys.stdout else "stderr"):
            (file or sys.stderr).write(message)

    def add_subparsers(self, **options: Any) -> Any:
        """Let each command say itself what it does not know."""
        return super().add_subparsers(**{"parser_class": _Command, **options})


class _Command(Parser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Take what is unknown for an error."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown
