"""Filters the calls that a process makes to the system.

`confine` takes from this process all that computing does not need, before it looks at the files of strangers.
Afterwards it can read and write what is open, and allocate memory. It can open no file and no connection, start no
process and no thread, and send no signal. `keep_memory_private` is for a tritonserver.

No library for this is well kept on PyPI; the kernel's interface is small: seccomp(2), with a filter program as in
bpf(4), and prctl(2). The image of the server has this file alone of the package, so it imports nothing else of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import struct
import sys
from pathlib import Path

_SET_NO_NEW_PRIVILEGES = 38  # of prctl: no program that it starts has more rights
_SET_FILTER, _THIS_THREAD, _ALL_THREADS = 1, 0, 1  # of seccomp
_ALLOW, _REFUSE, _PRETEND = 0x7FFF0000, 0x00050001, 0x00050000  # what a filter answers: go on, EPERM, "done"
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of a filter
_NUMBER_AT, _ARCHITECTURE_AT, _SECOND_ARGUMENT_AT = 0, 4, 24  # of the call, in what the filter sees
_OOM_SCORE = "600"
_READABLE = 0o644  # to all; what Boost makes of shared memory, whatever the umask is

_CALLS = {  # by machine: its number, those of seccomp and fchmod, those of the calls that stay
    "x86_64": (0xC000003E, 317, 91, {
        "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
        "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sched_yield": 24, "mremap": 25, "madvise": 28,
        "getpid": 39, "exit": 60, "sigaltstack": 131, "gettid": 186, "futex": 202, "clock_gettime": 228,
        "exit_group": 231, "getrandom": 318,
    }),
    "aarch64": (0xC00000B7, 277, 52, {
        "read": 63, "write": 64, "close": 57, "fstat": 80, "lseek": 62, "mmap": 222, "mprotect": 226, "munmap": 215,
        "brk": 214, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "sched_yield": 124, "mremap": 216,
        "madvise": 233, "getpid": 172, "exit": 93, "sigaltstack": 132, "gettid": 178, "futex": 98,
        "clock_gettime": 113, "exit_group": 94, "getrandom": 278,
    }),
}  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def limit_resources(memory: int, seconds: int) -> None:
    """Let this process have so many bytes of address space and seconds of computation, and write neither files nor
    what is left of it when it crashes. Where memory runs out, the kernel ends it before most others.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")
    for limit, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(limit, (most, most))


def confine() -> str | None:
    """Confine this process, all of its threads. What it needs must be imported before.

    Returns:
        Why this kernel cannot do all of it; None if it could. In any case nothing can be opened.
    """
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # what is open stays so
    if platform.machine() not in _CALLS:
        return _unknown()
    machine, seccomp, _, calls = _CALLS[platform.machine()]
    return _install(_allowing(machine, sorted(calls.values())), seccomp, _ALL_THREADS)


def keep_memory_private() -> str | None:
    """Let this thread, and each process that it starts from now on, make no file readable to all by `fchmod`.

    Boost, and so Triton, does that to all shared memory that it makes. The call answers as if it had been done.

    Returns:
        Why this kernel cannot do it; None if it could.
    """
    if platform.machine() not in _CALLS:
        return _unknown()
    machine, seccomp, fchmod, _ = _CALLS[platform.machine()]
    return _install(_pretending(machine, fchmod, _READABLE), seccomp, _THIS_THREAD)


def _unknown() -> str:
    return f"calls of the system are not filtered on {sys.platform} {platform.machine()}"


def _install(filtering: bytes, seccomp: int, threads: int) -> str | None:
    """Filter the calls of these threads from now on; returns why this kernel cannot."""
    if sys.platform != "linux":
        return _unknown()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return f"no_new_privs: {os.strerror(ctypes.get_errno())}"
    program = _Program(len(filtering) // 8, filtering)
    if libc.syscall(seccomp, _SET_FILTER, threads, ctypes.byref(program)):
        return f"seccomp: {os.strerror(ctypes.get_errno())}"
    return None


def _allowing(machine: int, calls: list[int]) -> bytes:
    """The program that allows these calls of this machine, and no others."""
    refuse = len(calls) + 2  # instructions from the first comparison on, to the one that refuses
    program = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_JUMP_IF_EQUAL, 0, refuse - 1, machine), (_LOAD, 0, 0, _NUMBER_AT)]
    for index, call in enumerate(calls):
        program.append((_JUMP_IF_EQUAL, len(calls) - index, 0, call))
    return _packed(*program, (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW))


def _pretending(machine: int, call: int, second: int) -> bytes:
    """The program that does all but this call with this second argument, and pretends to do that."""
    return _packed(
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_IF_EQUAL, 0, 5, machine),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_IF_EQUAL, 0, 3, call),
        (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
        (_JUMP_IF_EQUAL, 0, 1, second),
        (_RETURN, 0, 0, _PRETEND),
        (_RETURN, 0, 0, _ALLOW),
    )


def _packed(*program: tuple[int, int, int, int]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
