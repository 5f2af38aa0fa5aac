"""Building blocks of intrinsics: LLVM instructions on vectors of `WIDTH` numbers.

Each function takes an llvmlite builder and adds instructions to the function that it builds. Values, pointers and
places are LLVM values; places count numbers, not bytes.
"""

# mypy: ignore-errors
# llvmlite has no types.

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from voice_clone.native.instructions import INSTRUCTIONS
from voice_clone.native.sizes import WIDTH


class _BFloat(ir.Type):
    """bf16, which llvmlite does not have."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, _BFloat)

    def __hash__(self):
        return hash(_BFloat)


INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
BFLOAT, FLOAT, DOUBLE = _BFloat(), ir.FloatType(), ir.DoubleType()
FLOATS = ir.VectorType(FLOAT, WIDTH)
INTS = ir.VectorType(INT32, WIDTH)


def index(value):
    """A constant place or count."""
    return ir.Constant(INT64, value)


def splat(kind, value, size):
    """A constant vector: one value of type `kind`, `size` times."""
    return ir.Constant(ir.VectorType(kind, size), [value] * size)


def constant(value):
    """A constant vector of WIDTH float32."""
    return splat(FLOAT, float(np.float32(value)), WIDTH)


def broadcast(builder, value, size=WIDTH):
    """A vector of one number, `size` times."""
    vector = builder.insert_element(ir.Constant(ir.VectorType(value.type, size), ir.Undefined), value, INT32(0))
    return builder.shuffle_vector(vector, vector, splat(INT32, 0, size))


def variable(builder, value):
    """A variable with a first value. The compiler keeps it in registers."""
    return cgutils.alloca_once_value(builder, value)


def rows(builder, data, first, size, count):
    """Pointers to `count` rows of `size` numbers, from row `first` on."""
    return [builder.gep(data, [builder.mul(builder.add(first, index(k)), size)]) for k in range(count)]


def load(builder, pointer, at, kind):
    """The value of type `kind` at a place; its address need not be aligned."""
    return builder.load(builder.bitcast(builder.gep(pointer, [at]), kind.as_pointer()), align=1)


def store(builder, pointer, at, vector):
    """Write a vector of float32 to a place."""
    builder.store(vector, builder.bitcast(builder.gep(pointer, [at]), vector.type.as_pointer()), align=4)


def prefetch(builder, pointer, at):
    """Ask the processor to fetch what will be read soon. A place outside the array is harmless."""
    byte = INT8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [builder.bitcast(builder.gep(pointer, [at]), byte), INT32(0), INT32(3), INT32(1)])


def lanes(builder, vector, numbers):
    """The lanes of a vector with these numbers, as a vector."""
    mask = ir.Constant(ir.VectorType(INT32, len(numbers)), list(numbers))
    return builder.shuffle_vector(vector, vector, mask)


def every_other(builder, vector, first):
    """Every second lane of a vector, from lane `first` on."""
    return lanes(builder, vector, range(first, vector.type.count, 2))


def sum_lanes(builder, vector):
    """The sum of a vector's lanes. The upper half is added to the lower half until one number is left."""
    size = vector.type.count
    while size > 1:
        size //= 2
        low, high = lanes(builder, vector, range(size)), lanes(builder, vector, range(size, 2 * size))
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, INT32(0))


def fma(builder, a, b, c):
    """a * b + c, rounded once; of float32 or of vectors of float32.

    A processor without such an instruction computes with float64: the product is exact there.
    """
    if INSTRUCTIONS.fused:
        kind = ir.FunctionType(a.type, [a.type] * 3)
        name = "f32" if a.type == FLOAT else f"v{a.type.count}f32"
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.{name}")
        return builder.call(function, [a, b, c])
    narrow = a.type
    wide = DOUBLE if narrow == FLOAT else ir.VectorType(DOUBLE, narrow.count)
    a, b, c = (builder.fpext(each, wide) for each in (a, b, c))
    return builder.fptrunc(builder.fadd(builder.fmul(a, b), c), narrow)


def multiply_add(builder, a, b, c):
    """a * b + c by the processor's fastest way: rounded once, or after the product and after the sum."""
    return fma(builder, a, b, c) if INSTRUCTIONS.fused else builder.fadd(builder.fmul(a, b), c)


def accumulate(builder, total, a, b):
    """total += a * b, as `multiply_add` rounds it; `total` is a `variable`."""
    builder.store(multiply_add(builder, a, b, builder.load(total)), total)
