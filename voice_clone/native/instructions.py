"""The instructions of the processor that native code is compiled for: one choice for a process, made at import.

| choice | needs | numbers in a vector |
|---|---|---|
| avx512bf16 | what avx512 needs, and dot products of bf16 | 16 |
| avx512 | x86 with AVX-512 (F, BW, DQ, VL); it uses VNNI's dot products where they are | 16 |
| avx2 | x86 with AVX2 and FMA | 8 |
| plain | any processor: on x86 what every x86-64 has, elsewhere all that LLVM knows of the processor | 8 |

The widest that the processor has is chosen, unless the variable VOICE_CLONE_CPU_INSTRUCTIONS names another one. The
order of sums and where they are rounded depend on the choice, and on nothing else of the processor. So the last bits of
results may differ between two choices; with one choice they do not differ between two processors. avx512bf16 rounds the
activations of prompts to bf16 where the weights are bf16; all else is as with avx512.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from voice_clone.errors import InvalidArgument

VARIABLE = "VOICE_CLONE_CPU_INSTRUCTIONS"
FEATURES = "CPU_FEATURES_TO_COMPILE_FOR"
"""A variable: the features of a processor that is not at hand, for which code is compiled; see kernels/ahead.py."""
CHOICES = ("avx512bf16", "avx512", "avx2", "plain")

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX2 = ("avx2", "fma")
X86 = ("x86_64", "amd64")
PROCESSORS = (
    (),
    _AVX2,
    (*_AVX2, *_AVX512),
    (*_AVX2, *_AVX512, "avx512vnni"),
    (*_AVX2, *_AVX512, "avx512vnni", "avx512bf16"),
)
"""The features of all processors that differ here, of x86."""


class Instructions(NamedTuple):
    """What native code may use.

    Attributes:
        name: one of CHOICES.
        width: float32 numbers in a vector.
        fused: there is an instruction for a * b + c, rounded once.
        byte_pairs: AVX2's products of bytes, added in pairs.
        byte_dots: VNNI's products of bytes, added in fours, and of 16-bit numbers, added in pairs.
        bf16_dots: products of bf16, added in pairs.
    """

    name: str
    width: int
    fused: bool
    byte_pairs: bool
    byte_dots: bool
    bf16_dots: bool = False

    def __str__(self) -> str:
        return f"{self.name} with VNNI" if self.byte_dots else self.name


def choose(wanted: str, found: Mapping[str, bool], machine: str) -> Instructions:
    """The choice for a processor.

    Args:
        wanted: one of CHOICES; `auto` or nothing: the first one that the processor has.
        found: its features, by LLVM's names.
        machine: its kind, as of `platform.machine`.

    Raises:
        InvalidArgument: there is no such choice, or the processor does not have it.
    """
    x86 = machine.lower() in X86
    avx512 = x86 and all(found.get(name) for name in (*_AVX2, *_AVX512))
    has = {
        "avx512bf16": avx512 and bool(found.get("avx512bf16")),
        "avx512": avx512,
        "avx2": x86 and all(found.get(name) for name in _AVX2),
        "plain": True,
    }
    name = next(name for name in CHOICES if has[name]) if wanted in ("", "auto") else wanted
    if name not in has:
        raise InvalidArgument(f"{VARIABLE} is {wanted!r}; it must be one of auto, {', '.join(CHOICES)}")
    if not has[name]:
        raise InvalidArgument(f"{VARIABLE} is {wanted!r}, which this processor does not have; leave it empty")
    if name in ("avx512bf16", "avx512"):
        vnni, bf16 = bool(found.get("avx512vnni")), name == "avx512bf16"
        return Instructions(name, 16, fused=True, byte_pairs=True, byte_dots=vnni, bf16_dots=bf16)
    return Instructions(name, 8, fused=name == "avx2" or not x86, byte_pairs=name == "avx2", byte_dots=False)


def features() -> dict[str, bool]:
    """The features of this processor, by LLVM's names, which are the kernel's without some underlines.

    LLVM itself would be 46 MB and 30 ms of each process.
    """
    if FEATURES in os.environ:
        return dict.fromkeys(os.environ[FEATURES].split(), True)
    try:
        found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return dict.fromkeys(found[1].replace("_", "").split(), True) if found else {}


INSTRUCTIONS = choose(os.environ.get(VARIABLE, ""), features(), platform.machine())
