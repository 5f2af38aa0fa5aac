"""A small package of another vendor, installed by pip in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def install_package(folder: Path, module: str, code: str, points: Mapping[str, Mapping[str, str]]) -> Path:
    """Install a package of one module.

    Args:
        folder: where its source and the package lie; may lack.
        module: its name, which is that of the package, too.
        code: of the module.
        points: its entry points by their groups: what each name stands for.

    Returns: the folder that belongs on the path of Python.
    """
    source, installed = folder / "source", folder / "installed"
    source.mkdir(parents=True)
    (source / f"{module}.py").write_text(code, encoding="utf-8")
    lines = [f'[project]\nname = "{module}"\nversion = "1.0"\n\n[tool.setuptools]\npy-modules = ["{module}"]\n']
    for group, named in points.items():
        lines.append(f'[project.entry-points."{group}"]')
        lines += [f'{name} = "{point}"' for name, point in named.items()]
    (source / "pyproject.toml").write_text("\n".join(lines), encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    alone = ("--no-index", "--no-deps", "--no-build-isolation")
    subprocess.run([*pip, *alone, "--target", str(installed), str(source)], check=True, timeout=300)
    return installed
