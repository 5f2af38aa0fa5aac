"""Compiles kernels for all processors before the first start, so that an image need not have numba.

    python -m voice_clone.native.kernels.ahead [CHOICE ...]

Without a choice of instructions it compiles for all.

It compiles what ahead.txt names: all that Qwen3-TTS calls on a CPU with any precision. Each line has the choice of
instructions that calls it, or `any`; a kernel; and the kind of its arguments. The machine code lies beside the sources,
for the Python and numpy that compiled it.
"""

# mypy: ignore-errors
# numba has no types.

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from voice_clone.native.cache_folder import AHEAD
from voice_clone.native.instructions import CHOICES, FEATURES, INSTRUCTIONS, PROCESSORS, VARIABLE, choose
from voice_clone.native.kernel import key_ahead
from voice_clone.native.packed_file import PackedFile

KINDS = Path(__file__).with_name("ahead.txt")
MOST = 1 << 30  # bytes of all machine code


def main() -> None:
    """Compile for each processor, as many at once as there are cores."""
    wanted = sys.argv[1:] or CHOICES
    chosen = [each for each in PROCESSORS if choose("", dict.fromkeys(each, True), "x86_64").name in wanted]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_for, chosen))


def compile_for(processor):
    """Compile for a processor in a process of its own: the instructions are chosen at import."""
    environment = {**os.environ, FEATURES: " ".join(processor), VARIABLE: "", "NUMBA_DISABLE_INTEL_SVML": "1"}
    command = [sys.executable, "-c", f"from {__spec__.name} import compile_all; compile_all()"]
    subprocess.run(command, env=environment, check=True)


def compile_all() -> None:
    """Compile the kernels for this process's instructions."""
    from voice_clone.native.kernels.__main__ import call_nothing
    from voice_clone.native.kernels.compilation import machine_code

    call_nothing()
    lines = [line.split(maxsplit=2) for line in KINDS.read_text(encoding="utf-8").splitlines()]
    kinds = [line[1:] for line in lines if line[0] in ("any", INSTRUCTIONS.name)]
    for name, kind in kinds:
        file = PackedFile(AHEAD, key_ahead(name, kind), MOST, any_size=True)
        code = machine_code(name, json.loads(kind), shutil.which("ld"))
        file.part("code")(lambda code=code: [np.frombuffer(code, np.uint8)])
        file.keep()
    sys.stdout.write(f"{INSTRUCTIONS}: {len(kinds)} kernels\n")


if __name__ == "__main__":
    main()
