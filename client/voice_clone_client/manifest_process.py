"""A process that reads the manifest of one file: `python -m voice_clone_client.manifest_process < a.wav > a.json`.

For servers that read the files of strangers with c2pa-python; see `confined_process`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict

from .confined_process import work
from .errors import Unsupported
from .manifests import read


def main() -> int:
    """Read a file on stdin, write its `Manifest` as JSON, null if it has none, or the reason why it cannot be read."""
    with contextlib.suppress(Unsupported):
        read(b"RIFF\x04\0\0\0WAVE")  # loads the library, which could not be loaded later
    return work(lambda data: _json(data))


def _json(data: bytes) -> bytes:
    found = read(data)
    return json.dumps(None if found is None else asdict(found)).encode()


if __name__ == "__main__":
    sys.exit(main())
