"""Works on one file of a stranger: `python -m voice_clone_gateway.confined_process TASK < file > result`.

    clip      decodes a clip by FFmpeg; the result is a WAV file
    manifest  reads the C2PA manifest; the result is a `Manifest` as JSON, null if the file has none

A file that crashes a library, keeps it busy for ever or takes all memory ends only this process. A file that takes the
process over can do nothing with it. If the kernel cannot confine the process so far, a line on stderr says so.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import sys
from dataclasses import asdict

from voice_clone_client.clips import readable
from voice_clone_client.errors import Unsupported, VoiceCloneError
from voice_clone_program.confinement import confine, limit_resources
from voice_clone_provenance.manifests import read

SECONDS = 20  # of computation; 30 s of audio take less than one
NICE = 10  # it computes for a second or less; whoever started it serves all others meanwhile
REFUSED = 3  # exit code: the output is the reason
UNCONFINED = "not confined: "  # begins the line on stderr
_MEMORY = 2 << 30  # bytes of address space, of which the libraries take half


def main() -> int:
    """Do the task that the command line names, or write the reason why it cannot be done. Returns the exit code."""
    load, work = TASKS[sys.argv[1]]
    os.nice(NICE)
    load()
    limit_resources(_MEMORY, SECONDS)
    if (lack := confine()) is not None:
        print(f"{UNCONFINED}{lack}", file=sys.stderr, flush=True)
    try:
        sys.stdout.buffer.write(work(sys.stdin.buffer.read()))
    except VoiceCloneError as error:
        sys.stdout.buffer.write(error.text.encode())
        return REFUSED
    return 0


def _load_pyav() -> None:
    """Import all of it: it loads parts at their first use, and then no file can be opened any more."""
    with contextlib.suppress(ImportError):
        av = importlib.import_module("av")
        for module in pkgutil.walk_packages(av.__path__, "av."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def _decode(clip: bytes) -> bytes:
    return readable(clip)


def _load_c2pa() -> None:
    """Read a file that has no manifest, which loads the library."""
    with contextlib.suppress(Unsupported):
        read(b"RIFF\x04\0\0\0WAVE")


def _read_manifest(data: bytes) -> bytes:
    found = read(data)
    return json.dumps(None if found is None else asdict(found)).encode()


TASKS = {"clip": (_load_pyav, _decode), "manifest": (_load_c2pa, _read_manifest)}
"""By name: what loads all libraries that the task needs, and the task."""

if __name__ == "__main__":
    sys.exit(main())
