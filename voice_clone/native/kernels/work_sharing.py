"""How threads that run the same native function divide its work.

A function is a sequence of phases, and each phase is cut into chunks. A thread claims one chunk after the other, and
then waits until all chunks of the phase are done. So a thread that the system has suspended delays the others only if
it holds a chunk. A thread that arrives late finds no chunk to claim. It may read data that have changed meanwhile, but
what it computes from them is not used.

The threads share `counters`, int64 [2 * phases], zeros at the beginning: for each phase how many chunks are claimed,
and how many are done. Nothing here allocates, raises, or takes the GIL.
"""

# mypy: ignore-errors
# This is numba's language: types are those of the arguments.

from numba import int64, types
from numba.extending import intrinsic

from voice_clone.native.kernels.compilation import compiled

SPINS = 4000  # some microseconds; a thread that waits longer yields its core

_yield = types.ExternalFunction("sched_yield", types.int32())  # of the C library


@intrinsic
def _add(context, counters, index, value):
    """Atomic: counters[index] += value; returns the value before. counters: int64 [...]."""

    def code(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _at(context, builder, signature, arguments), arguments[2], "seq_cst")

    return int64(counters, int64, int64), code


@intrinsic
def _read(context, counters, index):
    """Atomic: counters[index]."""

    def code(context, builder, signature, arguments):
        return builder.load_atomic(_at(context, builder, signature, arguments), "acquire", 8)

    return int64(counters, int64), code


def _at(context, builder, signature, arguments):
    """A pointer to counters[index]."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@compiled
def claim(counters, phase):
    """Claim the next chunk of a phase. Returns its number; if that is not below the number of chunks, none is left."""
    return _add(counters, 2 * phase, int64(1))


@compiled
def claim_from_either_end(counters, phase, chunks, thread):
    """Claim a chunk of a phase: threads with even numbers claim from the first chunk on, the others from the last down.

    So each of two threads reads memory in one direction. A phase is claimed either by this function or by `claim`.

    Returns the chunk's number, or -1 if no chunk is left.
    """
    # One counter counts both ends: its upper 32 bits are the chunks that were claimed from the last one down.
    backwards = thread % 2 == 1
    taken = _add(counters, 2 * phase, int64(1) << 32 if backwards else int64(1))
    before, behind = taken & int64(0xFFFFFFFF), taken >> 32
    if before + behind >= chunks:
        return int64(-1)
    return chunks - 1 - behind if backwards else before


@compiled
def finish(counters, phase, count):
    """Count as done so many of a phase's chunks, which the thread has claimed."""
    _add(counters, 2 * phase + 1, int64(count))


@compiled
def wait(counters, phase, chunks):
    """Return when all chunks of a phase are done."""
    spins = 0
    while _read(counters, 2 * phase + 1) < chunks:
        spins += 1
        if spins > SPINS:
            _yield()


@compiled
def share(count, chunk, chunks):
    """The part of `count` items that belongs to a chunk: (first, last + 1)."""
    return count * chunk // chunks, count * (chunk + 1) // chunks
