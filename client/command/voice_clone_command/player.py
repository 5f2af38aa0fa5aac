"""Play on this machine, with the first known player that it has."""

from __future__ import annotations

import shutil
import subprocess
from types import TracebackType

from voice_clone_client.types import Chunk
from voice_clone_client.wav import pcm16

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
    """Return the name of the first player on this machine.

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

    Args:
        saved: the file that gets the same chunks, `-` for stdout; None for none. With one, a player that fails does not
            end the speech.

    Raises:
        PlayerFailed: as `find_player`; the player failed: from `write`, or, if the speech is saved, from the end of the
            block alone.
    """

    def __init__(self, saved: str | None) -> None:
        self._name = find_player()
        self._saved = saved
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: PlayerFailed | None = None

    def write(self, chunk: Chunk) -> None:
        """Write a chunk to the player; waits while its buffer is full."""
        if self._failure is not None:
            return
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
            self._failure = self._complaint(self._process) or self._failed("stopped playing")
            if self._saved is None:
                raise self._failure from None

    def _complaint(self, process: subprocess.Popen[bytes]) -> PlayerFailed | None:
        """Wait until the player has played all samples; what it says if it could not."""
        try:
            _, complaint = process.communicate()
        finally:
            process.kill()  # an interrupted wait leaves it running
        if not process.returncode:
            return None
        lines = complaint.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
        return self._failed(f"could not play: {lines[-1]}")

    def _failed(self, how: str) -> PlayerFailed:
        if self._saved is None:
            rest = "without a sound device here, save the speech with -o FILE and play it elsewhere"
        else:
            rest = f"the whole speech {'went to stdout' if self._saved == '-' else f'is in {self._saved}'}"
        return PlayerFailed(f"{self._name} {how}; {rest}")

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            if kind is None:
                self._failure = self._complaint(process)
            else:
                process.kill()
                process.communicate()
        if kind is None and self._failure is not None:
            raise self._failure
