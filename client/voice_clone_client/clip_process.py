"""A process that decodes one clip: `python -m voice_clone_client.clip_process < clip.m4a > clip.wav`.

For servers that decode the clips of strangers: a clip that crashes FFmpeg, occupies it for ever or takes all memory
ends this process alone.
"""

from __future__ import annotations

import resource
import sys

from .clips import readable
from .errors import VoiceCloneError

SECONDS = 20  # of computation; 30 s of audio take less than one
REFUSED = 3  # exit code: the output is the reason
_MEMORY = 2 << 30  # bytes of address space, of which the libraries take half


def main() -> int:
    """Read a clip on stdin, write the WAV file on stdout, or the reason why there is none."""
    for limit, most in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))
    try:
        sys.stdout.buffer.write(readable(sys.stdin.buffer.read()))
    except VoiceCloneError as error:
        sys.stdout.buffer.write(str(error).encode())
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
