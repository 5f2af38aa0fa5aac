"""Settings of a model: a `parameters` entry of its config.pbtxt, overridden by the environment.

One rule for every name: `VOICE_CLONE_CHECKPOINT_DIR` overrides the parameter `checkpoint_dir`, and for the models of a
family F `VOICE_CLONE_F_CHECKPOINT_DIR` overrides both. config.pbtxt expands no variables itself, but a model's process
inherits the server's environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

from voice_clone.errors import InvalidArgument

PREFIX = "VOICE_CLONE_"


class Settings:
    """The parameters of one model.

    Args:
        model_config: the parsed config.pbtxt as Triton hands it to `initialize`.
        environ: the environment; the process's own by default.
        family: of the model; empty if it has none.
    """

    def __init__(
        self, model_config: Mapping[str, Any], environ: Mapping[str, str] | None = None, family: str = ""
    ) -> None:
        parameters = model_config.get("parameters", {})
        self._values = {name: str(entry["string_value"]) for name, entry in parameters.items()}
        self._environ = os.environ if environ is None else environ
        self._prefixes = (f"{PREFIX}{family.upper()}_", PREFIX) if family else (PREFIX,)

    def text(self, name: str, default: str = "") -> str:
        """The setting as text; an empty value counts as not set."""
        for prefix in self._prefixes:
            if value := self._environ.get(prefix + name.upper()):
                return value
        return self._values.get(name) or default

    def secret(self, name: str) -> str:
        """The setting as a token, "" if there is none: from the environment alone, since a server shows config.pbtxt.

        Raises:
            InvalidArgument: it stands in config.pbtxt, or a header could not carry it. The message hides its value.
        """
        variable = PREFIX + name.upper()
        if self._values.get(name):
            raise InvalidArgument(f"{name} stands in config.pbtxt, which callers can read; set {variable} instead")
        value = self._environ.get(variable, "")
        if not all("!" <= character <= "~" for character in value):
            raise InvalidArgument(f"{variable} must be printable ASCII without spaces or line ends")
        return value

    def integer(self, name: str, default: int) -> int:
        """The setting as an integer > 0.

        Raises:
            InvalidArgument: it is something else.
        """
        value = self.text(name, str(default))
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise InvalidArgument(f"the setting {name} is {value!r}; it must be an integer > 0")
        return int(value)

    def number(self, name: str, default: float, least: float | None = None) -> float:
        """The setting as a number > 0; with `least`, as a number >= that.

        Raises:
            InvalidArgument: it is something else.
        """
        value = self.text(name, str(default))
        try:
            parsed = float(value)
        except ValueError:
            parsed = -1.0
        fits = parsed > 0.0 if least is None else parsed >= least
        if not fits or parsed == float("inf"):
            bound = "> 0" if least is None else f">= {least:g}"
            raise InvalidArgument(f"the setting {name} is {value!r}; it must be a number {bound}")
        return parsed

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """The setting as a comma-separated list of integers > 0.

        Raises:
            InvalidArgument: it is something else.
        """
        value = self.text(name, ",".join(map(str, default)))
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            raise InvalidArgument(f"the setting {name} is {value!r}; it must be integers > 0 separated by commas")
        return tuple(int(part) for part in parts)

    def choice(self, name: str, options: tuple[str, ...]) -> str:
        """The setting as one of `options`; the first is the default.

        Raises:
            InvalidArgument: it is something else.
        """
        value = self.text(name, options[0])
        if value not in options:
            raise InvalidArgument(f"the setting {name} is {value!r}; it must be one of {', '.join(options)}")
        return value

    @property
    def checkpoint_dir(self) -> Path:
        """The folder of the official checkpoint."""
        value = self.text("checkpoint_dir")
        if not value:
            raise InvalidArgument(
                f"no checkpoint: set checkpoint_dir or {self._prefixes[0]}CHECKPOINT_DIR to its folder"
            )
        return Path(value).expanduser()

    @property
    def voice_dir(self) -> Path:
        """Where voices persist; by default a `voices` folder in the user's data directory of the platform."""
        value = self.text("voice_dir")
        if value:
            return Path(value).expanduser()
        return Path(platformdirs.user_data_dir("voice-clone", appauthor=False)) / "voices"
