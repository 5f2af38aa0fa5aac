"""A process that decodes one clip: `python -m voice_clone_client.clip_process < clip.m4a > clip.wav`.

For servers that decode the clips of strangers with FFmpeg; see `confined_process`.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys

from .clips import readable
from .confined_process import work


def main() -> int:
    """Read a clip on stdin, write the WAV file on stdout, or the reason why there is none."""
    _load_pyav()
    return work(lambda clip: readable(clip))


def _load_pyav() -> None:
    """Load all of PyAV, if it is there: it loads parts of itself late, when nothing can be loaded."""
    with contextlib.suppress(ImportError):
        av = importlib.import_module("av")
        for module in pkgutil.walk_packages(av.__path__, "av."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


if __name__ == "__main__":
    sys.exit(main())
