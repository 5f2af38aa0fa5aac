"""Decode clips that the server does not read. They are files of strangers, so FFmpeg parses each in a process of its
own.
"""

from __future__ import annotations

import asyncio

from voice_clone_client import InvalidArgument
from voice_clone_client.clips import foreign_kind, without_url

from voice_clone_gateway.confined_process import REFUSED

from ..confined import ConfinedProcesses


class ClipReader:
    """Turn clips of other formats into WAV files."""

    def __init__(self, processes: ConfinedProcesses | None = None) -> None:
        self._processes = processes or ConfinedProcesses()

    async def readable(self, clip: bytes) -> bytes:
        """As `voice_clone_client.clips.readable`.

        Args:
            clip: bytes of a file, or its data URL.

        Raises:
            InvalidArgument: the clip cannot be decoded; the message says why.
        """
        kind = foreign_kind(clip)
        if kind is None:
            return clip
        clip = without_url(clip)
        if not kind.may_have_sound(clip):
            raise InvalidArgument(f"the `audio` is {kind.name}, but damaged; record or convert it again")
        try:
            code, out = await self._processes.run("clip", clip)
        except asyncio.TimeoutError:
            raise InvalidArgument(f"the `audio` is {kind.name} that takes too long to decode; convert it") from None
        if code == REFUSED:
            raise InvalidArgument(out.decode())
        if code != 0:
            raise InvalidArgument(f"the `audio` is {kind.name}, but damaged; record or convert it again")
        return out
