"""Starts confined processes for files of strangers; see `voice_clone_gateway.confined_process`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from voice_clone_gateway.confined_process import REFUSED, UNCONFINED

from .places import Places

log = logging.getLogger(__name__)

_PROGRAM = "voice_clone_gateway.confined_process"
_SECONDS = 30.0
_PARALLEL = 2
_MORE = 4
"""Processes beyond them, each for a caller that has none: a file may keep one busy for long."""
_WAITING = 4
"""Files of one caller that wait."""
_PATIENCE = 5.0  # seconds that a file waits
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")  # no keys and no tokens


class ConfinedProcesses:
    """Starts them; a few at a time, and callers take turns."""

    def __init__(self) -> None:
        self._places = Places(_PARALLEL, _WAITING, _PATIENCE, "files", _MORE)
        self._warned = False

    async def run(self, task: str, data: bytes) -> tuple[int, bytes]:
        """What a process makes of a file.

        Args:
            task: one of `confined_process.TASKS`.
            data: of the file.

        Returns:
            The exit code, and what it has written: the result at 0, at `REFUSED` the reason why there is none.

        Raises:
            asyncio.TimeoutError: it takes too long.
            TooManyWait: the caller has too many that wait, or this one has waited too long.
        """
        async with self._places.place():
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _PROGRAM, task),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"OMP_NUM_THREADS": "1"},
            )
            try:
                out, said = await asyncio.wait_for(process.communicate(data), _SECONDS)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        self._warn(said.decode(errors="replace"))
        assert process.returncode is not None
        if process.returncode not in (0, REFUSED):
            log.warning("a confined process ended with %d at the task %s", process.returncode, task)
        return process.returncode, out

    def _warn(self, said: str) -> None:
        """Say once that the kernel confines these processes less than it should."""
        for line in said.splitlines():
            if line.startswith(UNCONFINED) and not self._warned:
                self._warned = True
                log.warning("the processes that read files of strangers can open nothing, but are %s", line)
