"""What a process does that works on the file of a stranger: `clip_process` and `manifest_process`.

A file that crashes a library, occupies it for ever or takes all memory ends this process alone, and one that takes it
over can do nothing with it. Where the kernel cannot confine it as far as that, it says so on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from .confinement import confine, limit_resources
from .errors import VoiceCloneError

SECONDS = 20  # of computation; 30 s of audio take less than one
REFUSED = 3  # exit code: the output is the reason
UNCONFINED = "not confined: "  # begins the line on stderr
_MEMORY = 2 << 30  # bytes of address space, of which the libraries take half


def work(make: Callable[[bytes], bytes]) -> int:
    """Confine this process, then write on stdout what `make` makes of stdin, or the error that it raises.

    All libraries must be loaded. Returns the exit code.
    """
    limit_resources(_MEMORY, SECONDS)
    if (lack := confine()) is not None:
        print(f"{UNCONFINED}{lack}", file=sys.stderr, flush=True)
    try:
        sys.stdout.buffer.write(make(sys.stdin.buffer.read()))
    except VoiceCloneError as error:
        sys.stdout.buffer.write(str(error).encode())
        return REFUSED
    return 0
