"""Functions of `kernels/` as machine code, called without numba.

A kernel is compiled for each kind of arguments when it is first called with them, by a process of its own: numba is
140 MB and 0.2 seconds of each process that imports it. The machine code is kept for the next start.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import logging
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from voice_clone.errors import Unsupported
from voice_clone.native.arrays import Array
from voice_clone.native.cache_folder import AHEAD, PACKAGE, compiler, digest_of, processor_digest, writable_folder
from voice_clone.native.instructions import INSTRUCTIONS, VARIABLE
from voice_clone.native.packed_file import PackedFile

MOST = 64 << 20  # bytes of machine code that is kept, of all kernels, instructions and states of the sources
COMPILES = 180.0  # seconds after which a process that compiles a kernel counts as one that hangs
IDLE = 5.0  # seconds after which a process that compiles ends
PATIENCE = 120.0  # seconds for which a process waits until another one has compiled a kernel; it may be suspended

_NUMBER = 8  # bytes

log = logging.getLogger(__name__)

Kind = tuple[Any, ...]
"""Of each argument: of an array its type, dimensions, and whether it is contiguous; of a tuple those of its members."""


class Fixed(tuple[Any, ...]):
    """Arguments that stay the same from call to call: they are made flat once."""

    def __init__(self, _: Iterable[Any]) -> None:
        self.numbers: list[int] = []
        self.kind = _flatten(self, self.numbers)


class Kernel:
    """A function of `kernels/`: it takes arrays, numbers and tuples of them, and returns nothing.

    Args:
        name: its module below `kernels`, and its own.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._entries: dict[Kind, Callable[[bytes], int]] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> None:
        numbers: list[int] = []
        entry = self.entry(_flatten(arguments, numbers))
        self._run(entry, struct.pack(f"{len(numbers)}q", *numbers))

    def on_thread(self, *arguments: Any) -> Callable[[int], None]:
        """The function of these arguments and, before them, a thread's number. It keeps the arguments."""
        numbers: list[int] = []
        entry = self.entry(_flatten((0, *arguments), numbers))
        block = struct.pack(f"{len(numbers)}q", *numbers)[_NUMBER:]
        return partial(self._run_on_thread, entry, block, arguments)

    def _run_on_thread(self, entry: Callable[[bytes], int], block: bytes, _: tuple[Any, ...], thread: int) -> None:
        self._run(entry, struct.pack("q", thread) + block)

    def _run(self, entry: Callable[[bytes], int], block: bytes) -> None:
        if entry(block):
            raise RuntimeError(f"native code failed: {self.name}")

    def entry(self, kind: Kind) -> Callable[[bytes], int]:
        if kind not in self._entries:
            with self._lock:
                if kind not in self._entries:
                    self._entries[kind] = _made_entry(self.name, json.dumps(kind))
        return self._entries[kind]


def _flatten(arguments: tuple[Any, ...], numbers: list[int]) -> Kind:
    """The kind of arguments. Their numbers are appended: of an array, the address of numpy's object."""
    kinds: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            kinds.append((argument.dtype.char, argument.ndim, argument.flags.c_contiguous))
            numbers.append(id(argument))
        elif isinstance(argument, Fixed):
            kinds.append(argument.kind)
            numbers.extend(argument.numbers)
        elif isinstance(argument, tuple):
            kinds.append(_flatten(argument, numbers))
        elif isinstance(argument, (float, np.float32)):
            name, form = ("float32", "f4x") if isinstance(argument, np.float32) else ("float", "d")
            kinds.append(name)
            numbers.append(struct.unpack("q", struct.pack(form, argument))[0])
        else:
            kinds.append("bool" if isinstance(argument, (bool, np.bool_)) else "int")
            numbers.append(int(argument))
    return tuple(kinds)


def _made_entry(name: str, kind: str) -> Callable[[bytes], int]:
    """The entry of a kernel for one kind of arguments: of a shared library, or, without a linker, as LLVM links it."""
    ahead = PackedFile(AHEAD, key_ahead(name, kind), MOST)
    if ahead.found:
        return _mapped(ahead.part("code")(list)[0])
    if AHEAD.is_dir() and find_spec("numba") is None:
        raise Unsupported(f"native code for {name} was not compiled ahead, and there is no numba to compile it")
    try:
        linker = shutil.which("ld")
        if linker is None:
            raise FileNotFoundError("there is no ld to link it")
        return _mapped(_machine_code(name, kind, linker))
    except (OSError, RuntimeError) as error:
        _warn(str(error))
        return _linked_by_llvm(_machine_code(name, kind, ""))


@cache
def _warn(reason: str) -> None:
    log.warning("native code takes 50 MB more than it would: %s", reason)


def _mapped(code: Array) -> Callable[[bytes], int]:
    memory = os.memfd_create("native")  # it stays open: a library is known by the name of its file
    with os.fdopen(memory, "wb", closefd=False) as file:
        file.write(code.data)
    entry = ctypes.CDLL(f"/proc/self/fd/{memory}").entry
    entry.argtypes = [ctypes.c_char_p]
    return entry


_engines: list[Any] = []  # of LLVM; they keep the machine code that they have linked


def _linked_by_llvm(code: Array) -> Callable[[bytes], int]:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code.tobytes()))
    engine.finalize_object()
    _engines.append(engine)
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)(engine.get_function_address("entry"))


def _machine_code(name: str, kind: str, linker: str) -> Array:
    """The machine code of a kernel for one kind of arguments: kept, or compiled and kept."""
    folder, order = writable_folder("native"), [name, kind, linker]
    key = {
        "order": order,
        "sources": digest_of(PACKAGE / "native"),
        "python": sys.version,
        "packages": compiler(),
        "processor": processor_digest(),
    }
    with contextlib.ExitStack() as stack:
        if folder is not None:
            with contextlib.suppress(OSError):  # a full disk, a file of another user
                _lock(stack.enter_context((folder / f"{name}.lock").open("w")).fileno())
        kept = PackedFile(folder, key, MOST, any_size=True)
        [code] = kept.part("code")(lambda: [_compiled(order)])
        kept.keep()
    return code


def key_ahead(name: str, kind: str) -> dict[str, Any]:
    """The key of machine code that was compiled ahead, for all processors with these instructions."""
    return {
        "order": [name, kind],
        "sources": digest_of(PACKAGE / "native"),
        "python": sys.version,
        "numpy": np.__version__,
        "instructions": repr(INSTRUCTIONS),
    }


def _lock(file: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)


class _Compiler:
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
            process = self._process = self._process or _started()
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


def _started() -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    # Intel's library of vector functions, which numba would call where it is installed, has other bits.
    environment |= {"NUMBA_DISABLE_INTEL_SVML": "1", VARIABLE: INSTRUCTIONS.name}
    environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(each) for each in sys.path)
    command = [sys.executable, "-m", "voice_clone.native.kernels"]
    return subprocess.Popen(command, cwd=PACKAGE.parent, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


_compiled = _Compiler()
