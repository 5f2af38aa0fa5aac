"""The structure: imports go one way, and a family is named in its own packages alone."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    """import-linter with the contracts of pyproject.toml on the packages in `root`."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    path = os.pathsep.join(str(root / folder) for folder in (".", "client", "client/command", "gateway"))
    return subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)


def sources(*folders: str) -> list[Path]:
    found = {folder: sorted((ROOT / folder).rglob("*.py")) for folder in folders}
    assert all(found.values()), found
    return [path for paths in found.values() for path in paths]


def test_imports_go_one_way() -> None:
    found = lint(ROOT)
    assert found.returncode == 0, found.stdout


def test_arrows_against_the_layers_are_found(tmp_path: Path) -> None:
    for folder in ("voice_clone", "voice_clone_server", "client", "gateway", "perf", "tools"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "data", "model_repository")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    wrong = {
        "voice_clone/batching/engine.py": ["voice_clone.codec.worker"],
        "voice_clone/families/qwen3_tts/prompt.py": ["triton_python_backend_utils", "voice_clone.triton.model"],
        "voice_clone/triton/model.py": ["voice_clone.families.qwen3_tts.prompt"],
        "voice_clone/speakers/lru.py": ["torch"],
        "client/voice_clone_client/wav.py": ["voice_clone.errors", "voice_clone_command.output"],
        "client/voice_clone_text/sentences.py": ["numpy"],
        "perf/bench/load.py": ["tests", "perf.on_gpu.marks", "tools.demo_voice.grammar"],
        "tools/doctor.py": ["tests", "perf.bench.load"],
        "voice_clone_server/demo.py": ["tools", "perf.bench.load"],
        "voice_clone/errors.py": ["voice_clone_server.serve"],
    }
    arrows = []
    for file, imported in wrong.items():
        with (tmp_path / file).open("a", encoding="utf-8") as source:
            source.writelines(f"\nimport {name}\n" for name in imported)
        module = file.removeprefix("client/").removesuffix(".py").replace("/", ".")
        arrows += [f"{module} -> {name} (" for name in imported]
    found = lint(tmp_path)
    assert found.returncode != 0 and [arrow for arrow in arrows if arrow not in found.stdout] == [], found.stdout


def test_what_a_package_takes_of_another_is_public() -> None:
    private, found = re.compile(r"_[a-z]"), []
    for path in sources("voice_clone", "voice_clone_server", "client", "gateway", "tools", "perf"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            if module and module.startswith("voice_clone") and module.partition(".")[0] not in path.parts:
                names = [*module.split("."), *(each.name for each in node.names)]
                found += [f"{path}: {module}" for name in names if private.match(name)]
    assert found == []


def test_a_family_is_named_in_its_own_packages_alone() -> None:
    families = [path.name for path in (ROOT / "voice_clone" / "families").iterdir() if (path / "__init__.py").is_file()]
    assert families
    named = re.compile("|".join(families))
    homes = ("voice_clone/families", "voice_clone_server/families", "tools/families")
    own = [ROOT / folder / family for folder in homes for family in families]
    own.append(ROOT / "tools" / "demo_voice")  # trains the networks of one family for the demo, and no other uses it
    product = sources("voice_clone", "voice_clone_server", "client", "gateway", "tools")
    elsewhere = [path for path in product if not any(folder in path.parents for folder in own)]
    assert [str(path) for path in elsewhere if named.search(path.read_text(encoding="utf-8"))] == []


def test_adapters_are_short() -> None:
    for path in sources("model_repository", "voice_clone_server/optional_models"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 15, path
