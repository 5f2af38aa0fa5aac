"""Which voice speaks for requests that name none, or a voice of a vendor that is not there."""

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
_REPLACED_END = "neural"  # so end those of Azure's


class Finder(Protocol):
    """Finds any registered voice: the operator's `voice_clone_client.AsyncClient`."""

    async def get(self, name: str) -> Any:
        """The voice, with its `owner` and whether it is `shared`; raises VoiceNotFound."""

    async def aliases(self) -> Iterable[str]:
        """The aliases of voices."""


class VoiceNames:
    """The voice that this gateway has for requests that name none.

    It stands for a name of OpenAI's, Deepgram's or Azure's own voices, too, unless the operator, or the caller, has
    registered a voice, or set an alias, of that name. So no tenant can take the place of what the operator configured.

    Args:
        finder: asks the server.
        default: a registered voice; "" for none.
    """

    def __init__(self, finder: Finder, default: str) -> None:
        self._finder = finder
        self.default = default

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
        if self.default and _is_vendors(name):
            found = await self._find(name)
            if found is None and await self._is_alias(name):
                return name, None
            if found is None or not (found.owner == owner or (found.owner is None and found.shared)):
                return self.default, f"no voice {name!r} is registered; the default voice {self.default!r} speaks"
        return name, None

    async def _find(self, name: str) -> Any:
        try:
            return await self._finder.get(name)
        except VoiceNotFound:
            return None

    async def _is_alias(self, name: str) -> bool:
        return name_key(name) in map(name_key, await self._finder.aliases())


def _is_vendors(name: str) -> bool:
    """Whether it is the name of a voice of OpenAI's, Deepgram's or Azure's own."""
    key = name_key(name)
    return key in _REPLACED or key.startswith(_REPLACED_FAMILIES) or key.endswith(_REPLACED_END)


def reserved(default: str) -> list[str]:
    """The names that no tenant may give to a voice: that of the default voice, and those of vendors' voices.

    Args:
        default: as of `VoiceNames`.
    """
    families = [f"{begin}*" for begin in _REPLACED_FAMILIES]
    return sorted({*_REPLACED, *families, *filter(None, (default,))})
