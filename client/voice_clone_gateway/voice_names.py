"""Which registered voice a request means: names of other servers' voices, and requests that name none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from voice_clone_client import VoiceNotFound

OPENAI_VOICES = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse",
)  # fmt: skip
"""OpenAI's own voices. Many apps can name no others."""
_REPLACED = frozenset((*OPENAI_VOICES, "default"))  # "default" is vLLM-Omni's
_REPLACED_FAMILY = "aura-"  # so begin the names of Deepgram's voices


class Finder(Protocol):
    """Finds a registered voice: `voice_clone_client.AsyncClient`."""

    async def get(self, name: str) -> Any:
        """The voice; raises VoiceNotFound."""


class VoiceNames:
    """The names of voices that this gateway has beside the registered ones.

    An alias stands for its voice in any case. The default voice stands for no name, and for a name of OpenAI's or
    Deepgram's own voices that is not registered.

    Args:
        finder: asks the server.
        default: a registered voice; "" for none.
        aliases: the form is ALIAS=VOICE.

    Raises:
        ValueError: an alias has another form.
    """

    def __init__(self, finder: Finder, default: str = "", aliases: Iterable[str] = ()) -> None:
        self._finder = finder
        self.default = default
        self.aliases = dict(parse_voice_alias(alias) for alias in aliases)
        self._by_key = {alias.casefold(): voice for alias, voice in self.aliases.items()}

    async def choose(self, name: str | None, finder: Finder | None = None) -> tuple[str | None, str | None]:
        """The registered voice for a name, and a warning if it is not what the name says.

        None stays None where there is no default voice.

        Args:
            name: of the request.
            finder: finds what the caller may use; by default all.

        Raises:
            VoiceCloneError: the server had to be asked, and did not answer.
        """
        if name is None:
            return self.default or None, None
        voice = self._by_key.get(name.casefold())
        if voice is not None:
            return voice, None
        if self.default and (name.casefold() in _REPLACED or name.casefold().startswith(_REPLACED_FAMILY)):
            try:
                await (finder or self._finder).get(name)
            except VoiceNotFound:
                return self.default, f"no voice {name!r} is registered; the default voice {self.default!r} speaks"
        return name, None


def parse_voice_alias(text: str) -> tuple[str, str]:
    """Alias and voice of `ALIAS=VOICE`.

    Raises:
        ValueError: the text has another form.
    """
    alias, _, voice = (part.strip() for part in text.partition("="))
    if not alias or not voice or "=" in voice:
        raise ValueError(f"{text!r} is not ALIAS=VOICE")
    return alias, voice
