"""What a built repository of VoxCPM2 can be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.families.toolkit import Encoder
from voice_clone.native.matrix import weights

ENCODERS: tuple[str, ...] = ()
ENGINES: dict[str, tuple[str, ...]] = {}
CPU_ENGINES: dict[str, str] = {}
PRECISIONS = {"talker": ("auto", *weights.PRECISIONS), "code2wav": ("auto", "fp32", "tf32", "bf16")}


def encoders(checkpoint: Path) -> dict[str, Encoder]:
    """None: the voice encoder runs in torch alone."""
    return {}


def export(checkpoint: Path, folders: Mapping[str, Path]) -> dict[str, str]:
    """None: no stage has an ONNX graph."""
    return {}
