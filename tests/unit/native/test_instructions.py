"""Which instructions are chosen; code is compiled for what is chosen; the tests of native code with each choice."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite.binding import get_host_cpu_features

from voice_clone.errors import InvalidArgument
from voice_clone.native.instructions import CHOICES, INSTRUCTIONS, VARIABLE, choose, features
from voice_clone.native.kernels import compilation

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
AVX2 = dict.fromkeys(("avx", "avx2", "fma"), True)
AVX512 = AVX2 | dict.fromkeys(("avx512f", "avx512bw", "avx512dq", "avx512vl"), True)
VNNI = AVX512 | {"avx512vnni": True, "amx-int8": False}
BF16 = VNNI | {"avx512bf16": True}
X86 = "x86_64"

ASSEMBLY = """
import numpy as np
from numba import njit
from voice_clone.native.instructions import INSTRUCTIONS
import voice_clone.native.kernels.compilation
from voice_clone.native.kernels.matrix.tile_products import dot_tile

tile = dot_tile(1, 1)

@njit
def product(weights, x):
    return tile(weights, x, 0, 0)

x = np.arange(64, dtype=np.float32)[None]
assert product(x, x) == ((x * x).sum(),)
code = "".join(product.inspect_asm().values())
print(INSTRUCTIONS.name, "zmm" in code, "ymm" in code)
"""

NATIVE = [
    "tests/unit/native/test_native.py",
    "tests/unit/native/test_native_arithmetic.py",
    "tests/unit/native/test_winograd.py",
    "tests/parity/test_talker_parity.py",
    "tests/parity/test_codec_parity.py",
    "tests/unit/families/voxcpm2/test_native_audio_decoder.py",
]


def forced(choice: str) -> dict[str, str]:
    return {**os.environ, VARIABLE: choice}


@pytest.mark.parametrize(
    ("found", "machine", "name"),
    [
        (BF16, X86, "avx512bf16"),
        (VNNI, X86, "avx512"),
        (AVX512, X86, "avx512"),
        (AVX2, X86, "avx2"),
        ({}, X86, "plain"),
        ({}, "aarch64", "plain"),
    ],
)
def test_the_widest_is_chosen(found: dict[str, bool], machine: str, name: str) -> None:
    for wanted in ("", "auto", name):
        assert choose(wanted, found, machine).name == name
    assert choose("plain", found, machine).name == "plain"


def test_dots_are_used_where_they_are() -> None:
    assert str(choose("", VNNI, X86)) == "avx512 with VNNI" and str(choose("", AVX512, X86)) == "avx512"
    assert not choose("", AVX512, X86).byte_dots and not choose("avx2", VNNI, X86).byte_dots
    assert str(choose("", BF16, X86)) == "avx512bf16 with VNNI" and choose("", BF16, X86).bf16_dots
    assert not choose("avx512", BF16, X86).bf16_dots and choose("avx512", BF16, X86).byte_dots


def test_a_narrower_choice_takes_the_wider_features_away() -> None:
    processor, features = compilation.target("avx2", BF16, X86, "znver4")
    assert processor == "znver4" and {"+avx2", "-avx512f", "-avx512vnni", "-avx512bf16", "-amx-int8"} < set(
        features.split(",")
    )
    assert {"+avx2", "+avx512bf16", "-amx-int8"} < set(
        compilation.target("avx512bf16", BF16, X86, "znver4")[1].split(",")
    )
    assert compilation.target("plain", VNNI, X86, "znver4") == ("x86-64", "") and not choose("plain", VNNI, X86).fused
    assert (
        compilation.target("plain", {}, "aarch64", "neoverse-n1")[0] == "neoverse-n1"
        and choose("plain", {}, "aarch64").fused
    )


def test_what_the_kernel_says_of_the_processor_is_what_llvm_finds() -> None:
    assert choose("", get_host_cpu_features(), platform.machine()) == choose("", features(), platform.machine())


@pytest.mark.parametrize(
    ("wanted", "found", "machine"),
    [
        ("avx512bf16", VNNI, X86),
        ("avx512", AVX2, X86),
        ("avx2", {}, X86),
        ("avx2", AVX2, "aarch64"),
        ("sse", AVX2, X86),
        ("AVX2", AVX2, X86),
    ],
)
def test_what_is_not_there_is_refused(wanted: str, found: dict[str, bool], machine: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{VARIABLE} is '{wanted}'"):
        choose(wanted, found, machine)


@pytest.mark.skipif(INSTRUCTIONS.name == "plain", reason="this processor has no AVX2 to leave out")
@pytest.mark.parametrize(("choice", "zmm", "ymm"), [("avx2", False, True), ("plain", False, False)])
def test_code_is_compiled_for_what_is_chosen(choice: str, zmm: bool, ymm: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASSEMBLY], env=forced(choice), check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.split() == [choice, str(zmm), str(ymm)]


@pytest.mark.long
@pytest.mark.parametrize("choice", CHOICES[CHOICES.index(INSTRUCTIONS.name) :])
def test_all_tests_of_native_code_pass_with_each(choice: str) -> None:
    """Products, streams that do not know of each other, any number of threads, and parity with the official package."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *NATIVE]
    done = subprocess.run(command, env=forced(choice), check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-5000:]
