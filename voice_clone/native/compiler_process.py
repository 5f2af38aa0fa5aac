"""Starts the process that compiles kernels. A start that finds all machine code does not import this."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np

from voice_clone.native.arrays import Array
from voice_clone.native.cache_folder import PACKAGE
from voice_clone.native.instructions import INSTRUCTIONS, VARIABLE

COMPILES = 180.0  # seconds after which a process that compiles a kernel counts as one that hangs
IDLE = 5.0  # seconds after which a process that compiles ends

log = logging.getLogger(__name__)


def find_linker() -> str:
    """The program that makes a shared library of machine code.

    Raises:
        FileNotFoundError: there is none.
    """
    linker = shutil.which("ld")
    if linker is None:
        raise FileNotFoundError("there is no ld to link it")
    return linker


class Compiler:
    """A process that compiles kernels, one after the other. It ends when it was idle for some seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end = threading.Timer(IDLE, self._stop)

    def __call__(self, order: list[str]) -> Array:
        began = time.monotonic()
        self._end.cancel()
        code = self._answer(order) or self._answer(order)  # the process may have been killed
        if not code:
            raise RuntimeError(f"{order[0]} could not be compiled and linked; the log says why")
        log.info("native code compiled: %s, %.1f s", order[0], time.monotonic() - began)
        self._end = threading.Timer(IDLE, self._stop)
        self._end.daemon = True
        self._end.start()
        return np.frombuffer(code, np.uint8)

    def _answer(self, order: list[str]) -> bytes:
        """The machine code; nothing if the process ends before, or hangs, which ends it."""
        with self._lock:
            process = self._process = self._process or started()
            assert process.stdin is not None and process.stdout is not None
            patience = threading.Timer(COMPILES, process.kill)
            patience.daemon = True
            patience.start()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()
            size = int(process.stdout.readline() or 0)
            code = process.stdout.read(size)
            patience.cancel()
        if size and len(code) == size:
            return code
        self._stop()
        return b""

    def _stop(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.communicate()
                self._process = None


def started() -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    # Intel's library of vector functions, which numba would call where it is installed, has other bits.
    environment |= {"NUMBA_DISABLE_INTEL_SVML": "1", VARIABLE: INSTRUCTIONS.name}
    environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(each) for each in sys.path)
    command = [sys.executable, "-m", "voice_clone.native.kernels"]
    return subprocess.Popen(command, cwd=PACKAGE.parent, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


compiled = Compiler()
