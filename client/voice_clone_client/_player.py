"""Playback on this machine, by the first known player that it has."""

from __future__ import annotations

import shutil
import subprocess
from types import TracebackType

from .types import Chunk
from .wav import pcm16

# Each player reads raw PCM (16-bit little-endian mono) from its standard input, and ends at its end. ffplay is last
# because it exits before it has played its last buffer.
_PLAYERS = {
    "paplay": "--raw --format=s16le --channels=1 --rate={rate}",
    "aplay": "-q -t raw -f S16_LE -c 1 -r {rate}",
    "play": "-q -t raw -e signed -b 16 -L -c 1 -r {rate} -",
    "ffplay": "-nodisp -autoexit -loglevel error -probesize 32 -f s16le -sample_rate {rate} -i pipe:0",
}


class PlayerFailed(OSError):
    """There is no player, or the player failed; the text says what helps."""


def find_player() -> str:
    """Name of the first player on this machine.

    Raises:
        PlayerFailed: there is none.
    """
    for name in _PLAYERS:
        if shutil.which(name):
            return name
    raise PlayerFailed(
        "no audio player found; install one of paplay (PulseAudio), aplay (ALSA), play (SoX) or ffplay (FFmpeg), "
        "or save the speech with -o"
    )


class Player:
    """Plays chunks while they arrive. The end of the `with` block waits for the player; an error stops the player.

    Raises:
        PlayerFailed: as `find_player`; from `write` and the end of the block, the player failed.
    """

    def __init__(self) -> None:
        self._name = find_player()
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, chunk: Chunk) -> None:
        """Write a chunk to the player; waits while its buffer is full."""
        if self._process is None:
            options = _PLAYERS[self._name].format(rate=chunk.sample_rate).split()
            self._process = subprocess.Popen(
                [self._name, *options], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pcm16(chunk.samples))
            self._process.stdin.flush()
        except BrokenPipeError:
            self._finish(self._process)
            raise PlayerFailed(f"{self._name} stopped playing") from None

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the player has played all samples."""
        try:
            _, complaint = process.communicate()
        finally:
            process.kill()  # an interrupted wait leaves it running
        if process.returncode:
            lines = complaint.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
            raise PlayerFailed(f"{self._name} could not play: {lines[-1]}")

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        if kind is None:
            self._finish(process)
        else:
            process.kill()
            process.communicate()
