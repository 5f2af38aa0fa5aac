"""Every error of the server, in the words of each interface: it names the interface's own inputs, and nothing else."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from voice_clone_client.errors import from_status, renamed
from voice_clone_command.commands import line
from voice_clone_command.commands.common import in_words
from voice_clone_gateway.http.errors import FIELDS, failure

from voice_clone import errors
from voice_clone.speakers.parsing import FORMS
from voice_clone.turns import TOKEN_PARAMETER
from voice_clone_server.config_file import ConfigFile

ROOT = Path(__file__).parents[2]
ERRORS = {name for name, each in vars(errors).items() if isinstance(each, type)}
PARAMETERS = ("owner", "mark", "deadline_ms", "stream_id", TOKEN_PARAMETER)
OPTIONS = {name for form in FORMS.values() for name in form.options}
MODELS = [*ROOT.glob("model_repository/*/"), *ROOT.glob("voice_clone_server/optional_models/*/")]
INPUTS = {each.name for path in MODELS for each in ConfigFile.read(path).message.input}
KNOWN = {*PARAMETERS, *OPTIONS, *INPUTS}


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Those of all commands."""
    found: dict[str, argparse.ArgumentParser] = {}

    def visit(parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    found[name] = inner
                    visit(inner)

    visit(line._parser())
    return found


def texts(folder: str) -> Iterator[tuple[str, str]]:
    """Slug and text of each error that this code raises; a value is shown as `it`."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERRORS and node.args:
                text = shown(node.args[0])
                if text:
                    yield getattr(errors, node.func.id).slug, text  # type: ignore[attr-defined]


def shown(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join("it" if isinstance(part, ast.FormattedValue) else str(part.value) for part in node.values)  # type: ignore[attr-defined]
    return ""


MESSAGES = sorted({f"{slug}: {text}" for slug, text in texts("voice_clone")})
OF_CLIENT = sorted({f"{slug}: {text}" for slug, text in texts("client")})
PARSERS = parsers()


def test_the_messages_are_found() -> None:
    assert len(MESSAGES) > 200 and sum("`" in message for message in MESSAGES) > 100 and len(PARSERS) > 15


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_marks_inputs_and_nothing_else(message: str) -> None:
    assert message.count("`") % 2 == 0
    for name in re.findall(r"`([^` ]*)[^`]*`", message):
        assert re.fullmatch("(it)+", name) or name in KNOWN or name.startswith("options."), name


@pytest.mark.parametrize("message", [message for message in sorted({*MESSAGES, *OF_CLIENT}) if "`" in message])
def test_each_interface_has_its_own_names(message: str) -> None:
    error = from_status("INTERNAL", message)
    assert error.slug == message.partition(":")[0] and error.field
    assert "`" not in str(error) and TOKEN_PARAMETER not in str(error)
    for command, parser in PARSERS.items():
        words = in_words(error.text, parser)
        assert "`" not in words and "----" not in words and TOKEN_PARAMETER not in words
        options = {option for action in parser._actions for option in action.option_strings}
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", words):
            assert option in options, f"{command} has no {option}"
        assert not re.search(r"[\w-]--[a-z]|the --|option --\w+-?\w* option", words)
    detail: dict[str, Any] = failure(error, "1").body()["error"]
    assert "`" not in detail["message"] and "--" not in detail["message"] and TOKEN_PARAMETER not in detail["message"]
    assert detail["param"] is None or detail["param"].partition(".")[0] in FIELDS.values()


@pytest.mark.parametrize(
    ("command", "text", "words"),
    [
        ("upload", "`reference_text` is blank", "--text is blank"),
        ("keep", "`reference_text` is blank", "reference_text is blank"),
        ("speak", "`reference_text` is blank", "--reference-text is blank"),
        ("speak", "(`x_vector_only false`) needs it", "(--no-x-vector-only) needs it"),
        ("speak", "leave out `x_vector_only true`", "leave out --x-vector-only"),
        ("speak", "the option `options.style` is blank", "--option style is blank"),
        ("speak", "has the `mark required`", "has --mark required"),
        ("upload", "the `audio` is silent", "FILE is silent"),
        ("upload", "the `name` has 80 characters", "NAME has 80 characters"),
        ("blend", "the `name` has 80 characters", "--register has 80 characters"),
        ("delete", "give it as `token`", "give it as --token or VOICE_CLONE_TOKEN"),
        ("upload", r"the words '\x60consent\x60' say consent", r"the words '\x60consent\x60' say consent"),
    ],
)
def test_words_of_commands(command: str, text: str, words: str) -> None:
    assert in_words(text, PARSERS[command]) == words


def test_what_a_caller_sent_is_never_a_name() -> None:
    for value in ("`consent`", "it's `text` ", {"`seed`": "`voice`"}, "`" * 1000, "\ud800`text`"):
        sent = errors.InvalidArgument(f"the `language` {errors.quoted(value)} is unknown").message
        assert sent.count("`") == 2 and len(sent) < 200
        assert from_status("INTERNAL", sent).field == "language"


def test_names_for_another_caller() -> None:
    error = errors.InvalidArgument("the `audio` is silent; `audio` must be `mode x`")
    assert error.renamed({"audio": "reference_audio"}).text == (
        "`reference_audio` is silent; `reference_audio` must be `mode x`"
    )
    again = renamed(from_status("INTERNAL", error.message), {"mode": "kind"})
    assert (again.field, again.text) == ("audio", "the `audio` is silent; `audio` must be `kind x`")
