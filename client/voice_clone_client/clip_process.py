"""A process that decodes one clip: `python -m voice_clone_client.clip_process < clip.m4a > clip.wav`.

For servers that decode the clips of strangers: a clip that crashes FFmpeg, occupies it for ever or takes all memory
ends this process alone, and one that takes it over can do nothing with it. Where the kernel cannot confine it as far as
that, it says so on stderr.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys

from .clips import readable
from .confinement import confine, limit_resources
from .errors import VoiceCloneError

SECONDS = 20  # of computation; 30 s of audio take less than one
REFUSED = 3  # exit code: the output is the reason
UNCONFINED = "not confined: "  # begins the line on stderr
_MEMORY = 2 << 30  # bytes of address space, of which the libraries take half


def main() -> int:
    """Read a clip on stdin, write the WAV file on stdout, or the reason why there is none."""
    _load_pyav()
    limit_resources(_MEMORY, SECONDS)
    if (lack := confine()) is not None:
        print(f"{UNCONFINED}{lack}", file=sys.stderr, flush=True)
    try:
        sys.stdout.buffer.write(readable(sys.stdin.buffer.read()))
    except VoiceCloneError as error:
        sys.stdout.buffer.write(str(error).encode())
        return REFUSED
    return 0


def _load_pyav() -> None:
    """Load all of PyAV, if it is there: it loads parts of itself late, when nothing can be loaded."""
    with contextlib.suppress(ImportError):
        av = importlib.import_module("av")
        for module in pkgutil.walk_packages(av.__path__, "av."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


if __name__ == "__main__":
    sys.exit(main())
