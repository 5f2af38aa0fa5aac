"""Ids of voices, for APIs in which a voice has a name and an id.

An id is made of the voice's owner and name, so nothing is stored, and all gateways of a fleet have the same. It is no
secret. Its last two characters check the others, so no name looks like an id by accident.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import OrderedDict, defaultdict

from starlette.requests import HTTPConnection
from voice_clone_client import AsyncClient
from voice_clone_client.types import name_key

from ..services import services_of

LENGTH = 20
OPENAI_PREFIX = "voice_"
"""With which an id may begin."""
_CHECKED = LENGTH - 2
_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"
_FORM = re.compile(f"[{_SIGNS}]{{{LENGTH}}}")
_MOST = 100_000  # ids that are remembered
_PAGE = 1000
_AGAIN = 1.0  # seconds between two lists for the same owner


def voice_id(owner: str | None, name: str) -> str:
    """The id of a voice."""
    begin = _text(f"{'' if owner is None else 'of ' + owner}\0{name_key(name)}", _CHECKED)
    return begin + _text(begin, LENGTH - _CHECKED)


def is_id(text: str) -> bool:
    """Whether a text has the form of an id, without a prefix."""
    return bool(_FORM.fullmatch(text)) and _text(text[:_CHECKED], LENGTH - _CHECKED) == text[_CHECKED:]


def _text(value: str, length: int) -> str:
    number, signs = int.from_bytes(hashlib.sha256(value.encode()).digest(), "big"), ""
    while len(signs) < length:
        number, digit = divmod(number, len(_SIGNS))
        signs += _SIGNS[digit]
    return signs


async def voice_name(request: HTTPConnection, text: str) -> str:
    """The name of a voice by its id or name, for the caller of a request."""
    ids = services_of(request).voice_ids
    return await ids.name_of(request.state.client, text)


class VoiceIds:
    """Finds names by ids. A name never gets another id, so what was found once stays right."""

    def __init__(self) -> None:
        self._names: OrderedDict[tuple[str | None, str], str] = OrderedDict()  # by whom it may be used, and its id
        self._listing: dict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._listed: dict[str | None, float] = {}

    def remember(self, client: AsyncClient, owner: str | None, name: str) -> str:
        """The id of a voice that a caller sees."""
        key = client.owner, voice_id(owner, name)
        self._names[key] = name
        self._names.move_to_end(key)
        if len(self._names) > _MOST:
            self._names.popitem(last=False)
        return key[1]

    async def name_of(self, client: AsyncClient, text: str) -> str:
        """The name of a voice by its id, or the text itself if it is no id of a voice that the caller may use.

        Args:
            client: of the caller's key.

        Raises:
            VoiceCloneError: the server had to be asked, and did not answer.
        """
        key = client.owner, text.removeprefix(OPENAI_PREFIX)
        if not is_id(key[1]):
            return text
        if key not in self._names:
            asked = time.monotonic()
            async with self._listing[client.owner]:
                if self._listed.get(client.owner, -1.0) < asked:
                    await self._list(client)
        return self._names.get(key, text)

    async def _list(self, client: AsyncClient) -> None:
        """Remember all voices of a caller; one who asks for ids that are none waits for it."""
        wait = self._listed.get(client.owner, -_AGAIN) + _AGAIN - time.monotonic()
        await asyncio.sleep(max(0.0, min(wait, _AGAIN)))
        began = time.monotonic()
        for preset in await client.presets():
            self.remember(client, None, preset.name)
        last: str | None = None
        while True:
            voices = await client.list(limit=_PAGE, after=last)
            for voice in voices:
                self.remember(client, voice.owner, voice.name)
            if len(voices) < _PAGE:
                break
            last = voices[-1].name
        self._listed[client.owner] = began
