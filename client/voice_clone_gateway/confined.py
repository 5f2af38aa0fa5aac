"""Starts confined processes for files of strangers; see `voice_clone_client.confined_process`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from voice_clone_client import Overloaded
from voice_clone_client.callers import caller_here
from voice_clone_client.confined_process import REFUSED, UNCONFINED

log = logging.getLogger(__name__)

_PROGRAM = "voice_clone_client.confined_process"
_SECONDS = 30.0
_PARALLEL = 2
_WAITING = 4
"""Files of one caller that wait."""
_PATIENCE = 5.0  # seconds that a file waits
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")  # no keys and no tokens


class TooManyFiles(Overloaded):
    """The caller has too many files that wait, or one has waited too long."""

    def __init__(self) -> None:
        super().__init__("too many files wait to be read; send one after the other")


class _Turns:
    """A few places, which go to the callers in turn."""

    def __init__(self) -> None:
        self._running: list[str] = []  # callers
        self._lines: dict[str, list[asyncio.Future[None]]] = {}  # by caller, the one that was served last at the end

    @asynccontextmanager
    async def place(self, caller: str) -> AsyncIterator[None]:
        """A place during the block. Raises TooManyFiles."""
        line = self._lines.setdefault(caller, [])
        if len(line) >= _WAITING:
            raise TooManyFiles
        turn = asyncio.get_running_loop().create_future()
        line.append(turn)
        self._next()
        try:
            await asyncio.wait((turn,), timeout=_PATIENCE)
            if not turn.done():
                raise TooManyFiles
            yield
        finally:
            if turn.done():
                self._running.remove(caller)
            else:
                line.remove(turn)
            self._next()

    def _next(self) -> None:
        """Give the free places to those who wait, the callers that have fewer first."""
        self._lines = {caller: line for caller, line in self._lines.items() if line}
        while self._lines and len(self._running) < _PARALLEL:
            caller = min(self._lines, key=self._running.count)
            line = self._lines.pop(caller)
            line.pop(0).set_result(None)
            self._running.append(caller)
            if line:
                self._lines[caller] = line


class ConfinedProcesses:
    """Starts them; a few at a time, and callers take turns."""

    def __init__(self) -> None:
        self._turns = _Turns()
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
            TooManyFiles: the caller has too many that wait, or this one has waited too long.
        """
        async with self._turns.place(caller_here()):
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
