"""The house: imports go one way, and a family is named in its own room alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    """import-linter with the contracts of pyproject.toml on the packages in `root`."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    path = os.pathsep.join([str(root), str(root / "client")])
    return subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_imports_go_one_way() -> None:
    found = lint(ROOT)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("voice_clone/batching/engine.py", "import voice_clone.codec.worker"),
        ("voice_clone/families/qwen3_tts/text.py", "import triton_python_backend_utils"),
        ("voice_clone/families/qwen3_tts/text.py", "import voice_clone.triton.model"),
        ("voice_clone/triton/model.py", "import voice_clone.families.qwen3_tts.text"),
        ("voice_clone/speakers/lru.py", "import torch"),
        ("client/voice_clone_client/wav.py", "import voice_clone.errors"),
        ("perf/bench/load.py", "import tests.support.doubles.fakes"),
        ("perf/bench/load.py", "import perf.on_gpu.marks"),
    ],
)
def test_an_arrow_against_the_layers_is_found(file: str, line: str, tmp_path: Path) -> None:
    for folder in ("voice_clone", "client", "perf"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")
    found = lint(tmp_path)
    assert found.returncode != 0 and "BROKEN" in found.stdout


def test_a_family_is_named_in_its_own_room_alone() -> None:
    families = [path.name for path in (ROOT / "voice_clone" / "families").iterdir() if (path / "__init__.py").is_file()]
    assert families
    named = re.compile("|".join(families))
    rooms = [ROOT / room / family for room in ("voice_clone/families", "tools/families") for family in families]
    rooms.append(ROOT / "tools" / "demo_voice")  # trains the networks of one family for the demo, and no other uses it
    elsewhere = [
        path for path in sources("voice_clone", "client", "tools") if not any(r in path.parents for r in rooms)
    ]
    assert [str(path) for path in elsewhere if named.search(path.read_text(encoding="utf-8"))] == []


def test_adapters_are_short() -> None:
    for path in sources("model_repository"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 15, path
