"""Clips that the server does not read, decoded in a process of their own: files of strangers, which FFmpeg parses."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from voice_clone_client import InvalidArgument
from voice_clone_client.clip_process import REFUSED, UNCONFINED
from voice_clone_client.clips import foreign_kind

log = logging.getLogger(__name__)

_PROGRAM = "voice_clone_client.clip_process"
_SECONDS = 30.0
_PARALLEL = 2
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")  # no keys and no tokens


class ClipReader:
    """Makes WAV files of foreign clips; a few at a time, the others wait."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_PARALLEL)
        self._warned = False

    async def readable(self, clip: bytes) -> bytes:
        """As `voice_clone_client.clips.readable`.

        Args:
            clip: bytes of a file, or its data URL.

        Raises:
            InvalidArgument: it cannot be decoded; says why.
        """
        kind = foreign_kind(clip)
        if kind is None:
            return clip
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"OMP_NUM_THREADS": "1"},
            )
            try:
                out, said = await asyncio.wait_for(process.communicate(clip), _SECONDS)
            except asyncio.TimeoutError:
                raise InvalidArgument(f"the audio is {kind.name} that takes too long to decode; convert it") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        self._warn(said.decode(errors="replace"))
        if process.returncode == REFUSED:
            raise InvalidArgument(out.decode())
        if process.returncode != 0:
            log.warning("a process that decoded a clip ended with %d", process.returncode)
            raise InvalidArgument(f"the audio is {kind.name}, but damaged; record or convert it again")
        return out

    def _warn(self, said: str) -> None:
        """Say once that the kernel confines these processes less than it should."""
        for line in said.splitlines():
            if line.startswith(UNCONFINED) and not self._warned:
                self._warned = True
                log.warning("the processes that decode clips can open nothing, but are %s", line)
