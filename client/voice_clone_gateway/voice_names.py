"""Which registered voice a request means: names of other servers' voices, and requests that name none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from voice_clone_client import VoiceNotFound
from voice_clone_client.types import name_key

OPENAI_VOICES = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse",
)  # fmt: skip
"""OpenAI's own voices. Many apps can name no others."""
_REPLACED = frozenset((*OPENAI_VOICES, "default"))  # "default" is vLLM-Omni's
_REPLACED_FAMILIES = ("aura-", "flux-")  # so begin the names of Deepgram's voices


class Finder(Protocol):
    """Finds any registered voice: the operator's `voice_clone_client.AsyncClient`."""

    async def get(self, name: str) -> Any:
        """The voice, with its `owner` and whether it is `shared`; raises VoiceNotFound."""


class VoiceNames:
    """The names of voices that this gateway has beside the registered ones.

    An alias stands for its voice in any case. The default voice stands for no name, and for a name of OpenAI's or
    Deepgram's own voices, unless the operator, or the caller, has registered a voice of that name. So no tenant can
    take the place of what the operator configured.

    Args:
        finder: asks the server.
        default: a registered voice; "" for none.
        aliases: the form is ALIAS=VOICE.

    Raises:
        ValueError: an alias has another form, or two voices.
    """

    def __init__(self, finder: Finder, default: str, aliases: Iterable[str] = ()) -> None:
        self._finder = finder
        self.default = default
        pairs = [parse_voice_alias(alias) for alias in aliases]
        self.aliases = dict(pairs)
        self._by_key: dict[str, str] = {}
        for alias, voice in pairs:
            if self._by_key.setdefault(name_key(alias), voice) != voice:
                raise ValueError(f"voice_aliases give {alias!r} two voices; give it one")

    async def choose(self, name: str | None, owner: str | None = None) -> tuple[str | None, str | None]:
        """The registered voice for a name, and a warning if it is not what the name says.

        None stays None where there is no default voice.

        Args:
            name: of the request.
            owner: for whom the caller acts; None for the operator.

        Raises:
            VoiceCloneError: the server had to be asked, and did not answer.
        """
        if name is None:
            return self.default or None, None
        voice = self._by_key.get(name_key(name))
        if voice is not None:
            return voice, None
        if self.default and is_vendors(name):
            found = await self._find(name)
            if found is None or not (found.owner == owner or (found.owner is None and found.shared)):
                return self.default, f"no voice {name!r} is registered; the default voice {self.default!r} speaks"
        return name, None

    async def _find(self, name: str) -> Any:
        try:
            return await self._finder.get(name)
        except VoiceNotFound:
            return None


def is_vendors(name: str) -> bool:
    """Whether it is the name of a voice of OpenAI's or Deepgram's own."""
    key = name_key(name)
    return key in _REPLACED or key.startswith(_REPLACED_FAMILIES)


def reserved(default: str, aliases: Iterable[str]) -> list[str]:
    """The names that no tenant may give to a voice: those that the gateway has for voices, and those of vendors.

    Args:
        default, aliases: as of `VoiceNames`.

    Raises:
        ValueError: as of `VoiceNames`.
    """
    pairs = [parse_voice_alias(alias) for alias in aliases]
    families = [f"{begin}*" for begin in _REPLACED_FAMILIES]
    return sorted({*_REPLACED, *families, *filter(None, (default, *(n for pair in pairs for n in pair)))})


def parse_voice_alias(text: str) -> tuple[str, str]:
    """Alias and voice of `ALIAS=VOICE`.

    Raises:
        ValueError: the text has another form.
    """
    alias, _, voice = (part.strip() for part in text.partition("="))
    if not alias or not voice or "=" in voice:
        raise ValueError(f"{text!r} is not ALIAS=VOICE")
    return alias, voice
