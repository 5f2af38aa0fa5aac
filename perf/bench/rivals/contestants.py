"""Who speaks: what each has of a checkpoint, made by its own converter, and the process that speaks it."""

from __future__ import annotations

import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from voice_clone_server import guard

ROOT = Path(__file__).resolve().parents[3]
TALKER, TOKENIZER = "qwen-talker-0.6b-base", "qwen-tokenizer-12hz"  # the files of qwentts.cpp


class Failed(Exception):
    """A program of another engine ended with an error; the message is its last words."""


@dataclass(frozen=True)
class Contestant(ABC):
    """An engine.

    Class attributes:
        name: in the table.
        module: what its process runs.
        kinds: for each of our precisions what it calls the like of it, if it has any.

    Attributes:
        python: of the environment that has it; None: there is none.
    """

    name: ClassVar[str]
    module: ClassVar[str]
    kinds: ClassVar[Mapping[str, tuple[str, ...]]]

    python: str | None

    @property
    def missing(self) -> str | None:
        """Why it cannot speak, if it cannot."""
        return None if self.python else f"not installed: no --{self.name}"

    @abstractmethod
    def model(self, kind: str, folder: Path) -> Any:
        """What its process loads, as JSON has it. It is made on the first call.

        Args:
            folder: has the checkpoint in `endless`, and keeps what is made.

        Raises:
            Failed: its converter did.
        """

    def command(self, request: str) -> list[str]:
        """The process that speaks."""
        return [str(self.python), "-m", self.module, request]


class Ours(Contestant):
    name = "ours"
    module = "perf.bench.rivals.ours"
    kinds: ClassVar = {precision: (precision,) for precision in ("fp32", "bf16", "int8", "int4")}

    def model(self, kind: str, folder: Path) -> Any:
        return [str(folder / "endless"), kind]


class OursTextAlong(Ours):
    name = "ours, text along"


class OfficialPackage(Ours):
    name = "qwen-tts"
    module = "perf.bench.rivals.official"
    kinds: ClassVar = {precision: (precision,) for precision in ("fp32", "bf16")}


class Vox(Contestant):
    name = "vox"
    module = "perf.bench.rivals.vox"
    kinds: ClassVar = {"fp32": ("f32",), "bf16": ("bf16",), "int8": ("q8",), "int4": ("q4", "q4full")}

    def model(self, kind: str, folder: Path) -> Any:
        made = folder / f"vox-{kind}.tmod"
        if not made.exists():
            assert self.python is not None
            partial = folder / f"partial-{made.name}"
            how = ["--dtype", kind] if kind in ("f32", "bf16") else ["--dtype", "bf16", "--quant", kind]
            finish([self.python, "-m", "vox", "build", "--model", str(folder / "endless"), *how, "-o", str(partial)])
            partial.rename(made)
        return str(made)


@dataclass(frozen=True)
class Qwentts(Contestant):
    """Attributes:
    source: a checkout of qwentts.cpp with `convert.py` and, built, `build/quantize`.
    """

    name: ClassVar = "qwentts"
    module: ClassVar = "perf.bench.rivals.qwentts"
    kinds: ClassVar = {"fp32": ("F32",), "bf16": ("BF16",), "int8": ("Q8_0",), "int4": ("Q4_K_M",)}

    source: Path | None

    @property
    def missing(self) -> str | None:
        without = None if self.source else "its wheel has no converter: no --qwentts-source"
        return super().missing or without

    def model(self, kind: str, folder: Path) -> Any:
        assert self.source is not None and self.python is not None
        home = folder / "qwentts"
        checkpoints, made = home / "checkpoints", home / "models"
        if not checkpoints.exists():  # under names that the converter knows
            checkpoints.mkdir(parents=True)
            (checkpoints / "Qwen3-TTS-12Hz-0.6B-Base").symlink_to(folder / "endless")
            (checkpoints / "Qwen3-TTS-Tokenizer-12Hz").symlink_to(folder / "endless" / "speech_tokenizer")
        whole = [made / f"{part}-F32.gguf" for part in (TALKER, TOKENIZER)]
        if not all(file.exists() for file in whole):
            for file in whole:
                file.unlink(missing_ok=True)  # a part of one may be there
            finish([self.python, str(self.source / "convert.py")], home)
        files = []
        for source in whole:
            file = source.with_name(source.name.replace("F32", kind))
            if not file.exists():
                partial = file.with_name(f"partial-{file.name}")
                finish([str(self.source / "build" / "quantize"), str(source), str(partial), kind])
                partial.rename(file)
            files.append(str(file))
        return files


def finish(command: list[str], folder: Path = ROOT) -> str:
    """What a program writes to stdout. It ends with this process.

    Raises:
        Failed: it cannot be started, or fails.
    """
    environment = guard.marked()
    environment["PYTHONPATH"] = str(ROOT)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles all modules that pip has not
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise Failed(f"{command[0]} cannot be started: {error.strerror}") from error
    if done.returncode:
        raise Failed(last_words(done.stderr, done.returncode))
    return done.stdout


def last_words(stderr: str, status: int) -> str:
    """The line that says why a program failed, without folders: the last that names an error, else the last one."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "ASSERT" in line or "FATAL" in line]
    return re.sub(r"\S*/", "", (telling or lines or [f"exit status {status}"])[-1])


def all_contestants(vox: str | None, qwentts: str | None, qwentts_source: Path | None) -> list[Contestant]:
    """In the order in which they take turns."""
    own = sys.executable
    return [Ours(own), OursTextAlong(own), Qwentts(qwentts, qwentts_source), Vox(vox), OfficialPackage(own)]
