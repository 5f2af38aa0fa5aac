"""Files of strangers, on which programs of `voice_clone_client` work in confined processes of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from voice_clone_client.confined_process import UNCONFINED

log = logging.getLogger(__name__)

_SECONDS = 30.0
_PARALLEL = 2
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")  # no keys and no tokens


class ConfinedProcesses:
    """Starts them; a few at a time, the others wait."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_PARALLEL)
        self._warned = False

    async def run(self, program: str, data: bytes) -> tuple[int, bytes]:
        """What a program makes of a file.

        Args:
            program: a module that calls `confined_process.work`.
            data: of the file.

        Returns:
            The exit code, and what it has written.

        Raises:
            asyncio.TimeoutError: it takes too long.
        """
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", program),
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
        return process.returncode, out

    def _warn(self, said: str) -> None:
        """Say once that the kernel confines these processes less than it should."""
        for line in said.splitlines():
            if line.startswith(UNCONFINED) and not self._warned:
                self._warned = True
                log.warning("the processes that read files of strangers can open nothing, but are %s", line)
