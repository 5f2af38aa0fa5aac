"""How numba compiles kernels, in a process of its own; native/kernel.py starts it, and calls the machine code.

Machine code has one entry, `entry`: a function of the address of a block of 8-byte slots, one for each number and each
array of its arguments. It returns 0, or numba's number of an exception.
"""

# mypy: ignore-errors
# numba and llvmlite have no types.

import functools
import importlib
import os
import platform
import subprocess
from pathlib import Path

import numba
import numpy as np
from llvmlite import binding, ir
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba import types
from numba.core.compiler_lock import global_compiler_lock
from numba.np.numpy_support import as_dtype, from_dtype

from voice_clone.native.instructions import FEATURES, INSTRUCTIONS, X86

ENTRY = "entry"
_WHOLE = ir.IntType(64)
SCALARS = {"bool": types.boolean, "int": types.int64, "float": types.float64, "float32": types.float32}

compiled = numba.njit(nogil=True, error_model="numpy")
"""The decorator of kernels and of what they call. They release the GIL, and divide as numpy does, without raising. They
are compiled without fast arithmetic; see arithmetic.py."""


def target(name, found, machine, host):
    """The processor and the features that LLVM compiles for, by the choice of instructions.

    Args:
        name: of the choice.
        found: the features of this processor, by LLVM's names.
        machine: its kind, as of `platform.machine`.
        host: its name, as LLVM has it.
    """
    if name == "plain" and machine.lower() in X86:
        return "x86-64", ""
    narrow = name == "avx2"
    signs = {key: "+" if there and not (narrow and _is_wide(key)) else "-" for key, there in found.items()}
    return host, ",".join(f"{sign}{key}" for key, sign in signs.items())


def _is_wide(feature):
    """Whether a feature belongs to AVX-512 or to what came after it."""
    return feature.startswith(("avx512", "avx10", "avxvnni", "avxifma", "avxneconvert", "amx", "evex"))


# numba reads these two when it compiles its first function.
if FEATURES in os.environ:
    TARGET = "x86-64", ",".join(f"+{each}" for each in os.environ[FEATURES].split())
else:
    TARGET = target(INSTRUCTIONS.name, get_host_cpu_features(), platform.machine(), get_host_cpu_name())
numba.config.CPU_NAME, numba.config.CPU_FEATURES = TARGET


@global_compiler_lock
def machine_code(name, kinds, linker):
    """A shared library of a kernel's entry, or an object file.

    Args:
        name: module and function, below this package.
        kinds: of the arguments, as native/kernel.py writes them.
        linker: a program, or nothing: the object file is wanted.
    """
    module, _, function = name.rpartition(".")
    kernel = getattr(importlib.import_module(f"voice_clone.native.kernels.{module}"), function)
    arguments = _type(kinds).types
    kernel.compile(arguments)
    result = kernel.overloads[arguments]
    library = result.target_context.codegen().create_library(ENTRY)
    library.add_ir_module(_entry(library.create_ir_module(ENTRY), result))
    library.add_linking_library(result.library)
    library.finalize()
    cpu, features = TARGET
    machine = binding.Target.from_default_triple().create_target_machine(cpu, features, opt=3, reloc="pic")
    code = machine.emit_object(library._final_module)
    return _linked(code, linker) if linker else code


def _type(kind):
    if isinstance(kind, str):
        return SCALARS[kind]
    if isinstance(kind[-1], bool):
        dtype, dimensions, contiguous = kind
        return types.Array(from_dtype(np.dtype(dtype)), dimensions, "C" if contiguous else "A")
    return types.BaseTuple.from_types([_type(each) for each in kind])


def _entry(module, result):
    """Add the entry to a module: it calls the kernel with the numbers of the block."""
    convention = result.target_context.call_conv
    kind = convention.get_function_type(result.signature.return_type, result.signature.args)
    entry = ir.Function(module, ir.FunctionType(ir.IntType(32), [_WHOLE.as_pointer()]), ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    arguments = [builder.alloca(each.pointee) for each in kind.args[:2]]  # for the result, of which there is none
    for place, each in enumerate(_leaves(result.signature.args)):
        slot = builder.gep(entry.args[0], [ir.Constant(_WHOLE, place)])
        if isinstance(each, types.Array):
            arguments += _array(builder, slot, each, kind.args[len(arguments) :])
        else:
            arguments.append(builder.load(builder.bitcast(slot, kind.args[len(arguments)].as_pointer())))
    builder.ret(builder.call(ir.Function(module, kind, result.fndesc.llvm_func_name), arguments))
    # numba's runtime frees what has no owners left. No kernel owns memory, so this is never called.
    free = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()]), "NRT_MemInfo_call_dtor")
    ir.IRBuilder(free.append_basic_block()).ret_void()
    return module


def _leaves(kinds):
    for each in kinds:
        yield from _leaves(each) if isinstance(each, types.BaseTuple) else [each]


def _array(builder, slot, kind, wanted):
    """The arguments that numba makes of an array: no owners, size, size of an item, data, shape, strides.

    The slot has the address of numpy's object, whose fields are public: behind those of every object the data, the
    number of dimensions, the shape and the strides.
    """

    def at(address, place):
        return builder.load(builder.gep(builder.inttoptr(address, _WHOLE.as_pointer()), [ir.Constant(_WHOLE, place)]))

    head = object.__basicsize__ // 8
    data, shape, strides = (at(builder.load(slot), head + place) for place in (0, 2, 3))
    lengths, steps = ([at(each, axis) for axis in range(kind.ndim)] for each in (shape, strides))
    size = functools.reduce(builder.mul, lengths, ir.Constant(_WHOLE, 1))
    owners = [ir.Constant(each, None) for each in wanted[:2]]
    item = ir.Constant(_WHOLE, as_dtype(kind.dtype).itemsize)
    return [*owners, size, item, builder.inttoptr(data, wanted[4]), *lengths, *steps]


def _linked(code, linker):
    """A shared library of an object file. Neither needs room on a disk."""
    files = before, after = [os.memfd_create(name) for name in ("object", "library")]
    Path(f"/proc/self/fd/{before}").write_bytes(code)
    command = [linker, "-shared", "-z", "noexecstack", "-o", *(f"/proc/self/fd/{each}" for each in (after, before))]
    subprocess.run(command, pass_fds=files, check=True)
    return Path(f"/proc/self/fd/{after}").read_bytes()
