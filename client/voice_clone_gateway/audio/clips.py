"""Clips that the server does not read, decoded in a process of their own.

Whoever may speak or register a voice sends files here that FFmpeg parses. A file that crashes it, occupies it for ever
or takes all memory ends that process alone, and no other request notices.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from voice_clone_client import InvalidArgument, VoiceCloneError
from voice_clone_client.clips import foreign_kind, readable

log = logging.getLogger(__name__)

_SECONDS = 20.0  # of one decoding; 30 s of audio take less than one
_MEMORY = 2 << 30  # bytes of address space, of which the libraries take half
_PARALLEL = 2
_REFUSED = 3  # exit code: the output is the reason


class ClipReader:
    """Makes WAV files of foreign clips; a few at a time, the others wait."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_PARALLEL)

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
                *(sys.executable, "-m", __name__),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                out, _ = await asyncio.wait_for(process.communicate(clip), _SECONDS)
            except asyncio.TimeoutError:
                raise InvalidArgument(f"the audio is {kind.name} that takes too long to decode; convert it") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode == _REFUSED:
            raise InvalidArgument(out.decode())
        if process.returncode != 0:
            log.warning("a process that decoded a clip ended with %d", process.returncode)
            raise InvalidArgument(f"the audio is {kind.name}, but damaged; record or convert it again")
        return out


def main() -> int:
    """Read a clip on stdin, write the WAV file on stdout, or the reason why there is none."""
    import resource

    for limit, most in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CPU, int(_SECONDS)), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))
    try:
        sys.stdout.buffer.write(readable(sys.stdin.buffer.read()))
    except VoiceCloneError as error:
        sys.stdout.buffer.write(str(error).encode())
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
