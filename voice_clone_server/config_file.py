"""Read, change and write a config.pbtxt: its values in Triton's own message, its comments beside them.

The message has no comments, but operators need those of the parameters. So a written file has them again, before their
field or after their parameter. Comments within a field are lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from google.protobuf import text_format


def _messages() -> Any:
    """Load Triton's messages from their file, because their package imports gRPC, for which a start would wait."""
    package = find_spec("tritonclient")
    assert package is not None and package.origin is not None
    spec = spec_from_file_location("model_config_pb2", Path(package.origin).parent / "grpc" / "model_config_pb2.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


model_config_pb2 = _messages()

# A parameter and its comment, on a line of their own.
_PARAMETER = re.compile(r'^parameters\s*\{\s*key:\s*"(\w+)".*?\}\s*\}[ \t]*(?:#\s*(.*))?$', re.MULTILINE)

END = "end of file"  # in place of a field
EMPTY = 'string_value: ""'  # a value that the format leaves out; an operator needs it to fill it in


class ConfigError(Exception):
    """A config.pbtxt cannot be read; the text says which, and why."""


class ConfigFile:
    """A config.pbtxt.

    Attributes:
        message: Triton's ModelConfig.
        meanings: comments of the parameters, by name, in the order of the file; "" where there is none.
    """

    def __init__(self, text: str) -> None:
        """
        Raises:
            text_format.ParseError: it is no configuration.
        """
        self.message: Any = model_config_pb2.ModelConfig()
        self.message.CopyFrom(_parsed(text))
        self._text = text

    @classmethod
    def read(cls, model: Path) -> ConfigFile:
        """Read the configuration in a model's folder.

        Raises:
            ConfigError: there is none, or it cannot be read.
        """
        file = cls.read_if(model, [""])
        assert file is not None, "each text has the empty word"
        return file

    @classmethod
    def read_if(cls, model: Path, words: Sequence[str]) -> ConfigFile | None:
        """As `read`, but None if the file has none of these words. Then it is not parsed, which takes a millisecond."""
        path = model / "config.pbtxt"
        try:
            text = _text(path, _state(path))
            return cls(text) if any(word in text for word in words) else None
        except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
            raise ConfigError(f"{model.name}: config.pbtxt cannot be read: {error}") from None

    @cached_property
    def meanings(self) -> dict[str, str]:
        return dict(_PARAMETER.findall(self._text))

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters' values by name, in the order of the file."""
        values = {name: str(value.string_value) for name, value in self.message.parameters.items()}
        known = [name for name in self.meanings if name in values]
        return {name: values[name] for name in [*known, *sorted(values.keys() - set(known))]}

    def set(self, name: str, value: str) -> None:
        """Set a parameter of the file to another value.

        Raises:
            ValueError: the file has no such parameter.
        """
        if name not in self.message.parameters:
            raise ValueError(f"{self.message.name} has no parameter {name}")
        self.message.parameters[name].string_value = value

    def text(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def write(self, model: Path) -> None:
        """Write it to a model's folder."""
        (model / "config.pbtxt").write_text(self.text(), encoding="utf-8")

    def _lines(self) -> Iterator[str]:
        comments = _comments(self._text)
        rest = model_config_pb2.ModelConfig()
        rest.CopyFrom(self.message)
        rest.ClearField("parameters")
        for line in text_format.MessageToString(rest, as_utf8=True).splitlines():
            yield from comments.pop(_field(line), ())
            yield line
        for name in self.parameters:
            yield from comments.pop("parameters", ())
            parameter = self.message.parameters[name]
            value = text_format.MessageToString(parameter, as_utf8=True, as_one_line=True).strip()
            line = f'parameters {{ key: "{name}" value {{ {value or EMPTY} }} }}'
            meaning = self.meanings.get(name, "")
            yield f"{line}  # {meaning}" if meaning else line
        for left in comments.values():
            yield from left


@lru_cache(maxsize=256)
def _text(path: Path, _: tuple[int, ...]) -> str:
    """Return the text of a file in this state."""
    return path.read_text(encoding="utf-8")


def _state(path: Path) -> tuple[int, ...]:
    """Return what of a file changes when it is written."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """Return the message of a file, from a cache, because parsing takes a millisecond and tools read all files several
    times.
    """
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def _field(line: str) -> str:
    """Return the field that begins on a line without indentation; "" if none does."""
    found = re.match(r"\w+", line)
    return found[0] if found else ""


def _comments(text: str) -> dict[str, list[str]]:
    """Comments on lines of their own, by the field that follows. Those behind the file's first field are the file's."""
    found: dict[str, list[str]] = {}
    waiting: list[str] = []
    first = ""
    for line in text.splitlines():
        if line.startswith("#"):
            waiting.append(line)
        elif field := _field(line):
            if waiting:
                found.setdefault(field if found else first or field, waiting)
            first, waiting = first or field, []
    return {**found, END: waiting}
