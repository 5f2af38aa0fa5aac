"""Compiles a kernel for one kind of arguments, and writes its machine code to stdout."""

import json
import sys

from voice_clone.native.kernels.compilation import machine_code

if __name__ == "__main__":
    name, kinds, linker = sys.argv[1:]
    sys.stdout.buffer.write(machine_code(name, json.loads(kinds), linker))
