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
import struct
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
from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.native.packed_file import PackedFile

MOST = 64 << 20  # bytes of machine code that is kept, of all kernels, instructions and states of the sources
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
    kept = PackedFile(writable_folder("native"), _key(name, kind, linked=True), MOST)
    if kept.found:
        with contextlib.suppress(OSError):  # code of a file must not be run here: LLVM links it again, below
            return _mapped(kept.part("code")(list)[0])
    if AHEAD.is_dir() and find_spec("numba") is None:
        raise Unsupported(f"native code for {name} was not compiled ahead, and there is no numba to compile it")
    from voice_clone.native.compiler_process import find_linker  # what is found needs none

    try:
        return _mapped(_machine_code(name, kind, find_linker()))
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
    from voice_clone.native.compiler_process import compiled

    folder = writable_folder("native")
    with contextlib.ExitStack() as stack:
        if folder is not None:
            with contextlib.suppress(OSError):  # a full disk, a file of another user
                _lock(stack.enter_context((folder / f"{name}.lock").open("w")).fileno())
        kept = PackedFile(folder, _key(name, kind, bool(linker)), MOST, any_size=True)
        [code] = kept.part("code")(lambda: [compiled([name, kind, linker])])
        kept.keep()
    return code


def _key(name: str, kind: str, linked: bool) -> dict[str, Any]:
    """The key of machine code that is kept."""
    return {
        "order": [name, kind, linked],
        "sources": digest_of(PACKAGE / "native"),
        "python": sys.version,
        "packages": compiler(),
        "processor": processor_digest(),
    }


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
