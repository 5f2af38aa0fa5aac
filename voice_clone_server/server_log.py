"""What tritonserver and its models print, cut down to what a person needs.

A line of Triton begins with its level, the date, a process and a source: `I1122 20:24:04.463954 12135 server.cc:241]
"text"`. Of these the models' own lines stay (they come through telemetry.py), and Triton's warnings and errors. Lines
without such a beginning, like a traceback, stay too, but for Triton's tables.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import deque
from pathlib import Path
from typing import BinaryIO

KEPT = 400  # lines, for the reasons of a failure
_TRITON = re.compile(r'(?P<level>[IWEF])\d{4} [\d:.]+ \d+ (?P<source>\w+\.\w+):\d+\] "?(?P<text>.*?)"?$')
_TABLE = re.compile(r"[+|]|\s*$|Signal \(\d+\) received")
# What Triton complains of where there is no GPU, though nothing wants one.
_NO_GPU = re.compile(
    "CUDA driver version is insufficient|CudaDriverHelper has not been initialized|Failed to initialize NVML"
    "|DCGM unable to start|allocate pinned system memory"
)
_GRIPES = ("model_lifecycle.cc", "model_repository_manager.cc")  # of failed loads, which `ServerFailed` sums up
_LEVELS = {"W": "warning: ", "E": "error: ", "F": "fatal: "}


def has_gpu() -> bool:
    """Whether this machine has a driver of NVIDIA."""
    return any(Path("/dev").glob("nvidia*")) or Path("/dev/dxg").exists()


def shown(line: str, gpu: bool = False) -> str | None:
    """What is shown of a line; None: nothing. With `gpu` also what Triton complains of where there is none."""
    if _TABLE.match(line) or (not gpu and _NO_GPU.search(line)):
        return None
    found = _TRITON.match(line)
    if found is None:
        return line
    ours = found["source"] == "telemetry.py"
    if not ours and (found["level"] == "I" or found["source"] in _GRIPES):
        return None
    return _LEVELS.get(found["level"], "") + found["text"]


class ServerLog:
    """A pipe for a server's output, read by a thread of its own; what is shown goes to stderr.

    Args:
        verbose: every line is shown, as it is.
    """

    def __init__(self, verbose: bool = False) -> None:
        self._verbose = verbose
        self._gpu = has_gpu()
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._reader: threading.Thread | None = None

    def open(self, mode: str) -> BinaryIO:
        """The end of a new pipe to which a server writes. Its reader ends with the last process that has it open."""
        read, write = os.pipe()
        self._reader = threading.Thread(target=self._read, args=(read,), name="server log", daemon=True)
        self._reader.start()
        return os.fdopen(write, mode.replace("a", "w"))  # type: ignore[return-value]

    def read_text(self, errors: str = "replace") -> str:
        """The newest lines as they are; of a server that has ended, up to its last."""
        if self._reader is not None:
            self._reader.join(2.0)
        return "\n".join(self._lines)

    def found(self, pattern: str) -> list[tuple[str, ...]]:
        """The groups of a pattern in each of the newest lines that has it."""
        matches = (re.search(pattern, line) for line in list(self._lines))
        return [match.groups() for match in matches if match]

    def _read(self, pipe: int) -> None:
        shows = True
        with open(pipe, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                text = line.rstrip("\n")
                self._lines.append(text)
                short = text if self._verbose else shown(text, self._gpu)
                if short is not None and shows:
                    try:
                        print(short, file=sys.stderr, flush=True)
                    except BrokenPipeError:  # whoever read it has left; the server still writes
                        shows = False
