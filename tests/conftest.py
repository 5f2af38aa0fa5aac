"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

# The networks of the tests are tiny: one thread a process is faster than several that wait for each other, here and in
# the models of the servers that the tests start. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tools.checkpoint_maker import make_checkpoint
from tools.export_onnx import export_all
from tools.onnx_comparison import Loaded

CheckpointFactory = Callable[[str, int], Path]

# A shell's background jobs ignore Ctrl-C, and so would what the tests start there and then interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> CheckpointFactory:
    """Makes the random checkpoint of a shape and seed, once a run."""
    made: dict[tuple[str, int], Path] = {}

    def folder(shape: str, seed: int) -> Path:
        if (shape, seed) not in made:
            made[shape, seed] = tmp_path_factory.mktemp(f"{shape}-{seed}") / "checkpoint"
            make_checkpoint(shape, seed, made[shape, seed])
        return made[shape, seed]

    return folder


@pytest.fixture(scope="session")
def onnx_folder(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ONNX graphs of the tiny checkpoint of seed 0."""
    folder = tmp_path_factory.mktemp("onnx")
    export_all(Loaded.of(checkpoint_folder("tiny", 0)), folder)
    return folder


@pytest.fixture(scope="session")
def reference_clip() -> bytes:
    """The WAV file of the shipped clip of speech: 5.2 s, 22.05 kHz."""
    return (Path(__file__).parent.parent / "tools" / "data" / "reference.wav").read_bytes()


@pytest.fixture(scope="session")
def reference_text() -> str:
    """Its transcript."""
    return (Path(__file__).parent.parent / "tools" / "data" / "reference.txt").read_text(encoding="utf-8").strip()
