"""Compiles kernels. It reads orders from stdin, one a line, and writes size and machine code of each kernel to stdout.

What several kernels have in common is compiled once.
"""

# mypy: ignore-errors
# numba has no types.

import json
import sys

from numba.core.codegen import JITCodeLibrary
from numba.core.cpu import CPUContext

from voice_clone.native.kernels.compilation import machine_code


def call_nothing() -> None:
    """Leave out the machine code with which this process would call kernels itself. It takes a third of the time."""
    JITCodeLibrary._finalize_specific = lambda self: self._codegen._scan_and_fix_unresolved_refs(self._final_module)
    # numba wants a built-in function of its own for each.
    CPUContext.get_executable = lambda self, library, fndesc, env: [].append


def main() -> None:
    call_nothing()
    for line in sys.stdin:
        name, kinds, linker = json.loads(line)
        code = machine_code(name, json.loads(kinds), linker)
        sys.stdout.buffer.write(b"%d\n%b" % (len(code), code))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
