"""The packages as a release has them: sdists, wheels made of these, and an environment into which they are installed.

It has a clean environment's folders and the packages of this one, so no network is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voice_clone.native import cache_folder
from voice_clone_server.triton_server import ROOT

pytestmark = pytest.mark.thorough

PROJECTS = sorted(
    file.parent
    for file in (*ROOT.glob("*/pyproject.toml"), *ROOT.glob("client/*/pyproject.toml"), ROOT / "pyproject.toml")
)
COMMANDS = sorted(path.name for path in Path(sys.executable).parent.glob("voice-clone*"))


def build(project: Path, folder: Path) -> Path:
    """The wheel of a project, made of its sdist; outside the checkout, in which a build leaves files."""
    sources = folder / "sources"
    kept = "tools" if project == ROOT else ""  # of a checkout the server needs what is linked into its package, too
    shutil.copytree(project, sources, symlinks=True, ignore=lambda at, names: unpacked(Path(at), names, kept))
    call = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", call, str(folder), cwd=sources)
    [sdist] = folder.glob("*.tar.gz")
    run(sys.executable, "-m", "pip", "wheel", *ALONE, "--no-build-isolation", "--wheel-dir", str(folder), str(sdist))
    [wheel] = folder.glob("*.whl")
    return wheel


ALONE = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
PACKED = {"LICENSE", "README.md", "model_repository", "pyproject.toml"}


def unpacked(folder: Path, names: list[str], kept: str) -> set[str]:
    """What is left out of a copy of `folder`: the environment, caches, and of the checkout what is in no package."""
    if not (folder / "pyproject.toml").is_file():
        return {name for name in names if name == "__pycache__"}
    return {name for name in names if not (name in PACKED or name == kept or name.startswith("voice_clone"))}


def run(*command: str, cwd: Path | None = None, **environment: str) -> str:
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `bin` of an environment with the wheels, and with links to all other packages of this one."""
    folder = tmp_path_factory.mktemp("installed")
    wheels = [str(build(project, folder / project.name)) for project in PROJECTS]
    venv.create(folder / "environment")
    site = Path(sysconfig.get_paths("venv", {"base": str(folder / "environment")})["purelib"])
    for each in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if each.suffix != ".pth" and not each.name.startswith(("__editable__", "voice_clone")):
            (site / each.name).symlink_to(each)
    programs = folder / "environment" / "bin"
    run(sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", *ALONE, *wheels)
    return programs


def test_the_installed_packages_have_all_files(installed: Path) -> None:
    """The code with its types, the models, the demo's voice and the gateway's page; and nothing else."""
    script = "import importlib.util, sys; print(*importlib.util.find_spec(sys.argv[1]).submodule_search_locations)"
    packages = [path.parent for project in PROJECTS for path in project.glob("voice_clone*/__init__.py")]
    assert len(packages) >= 4
    for package in packages:
        there = Path(run(str(installed / "python"), "-Ic", script, package.name).strip())
        assert there.is_relative_to(installed.parent)
        assert files(there) == files(package) and "py.typed" in files(there)


def files(package: Path) -> set[str]:
    found = (Path(folder, name) for folder, _, names in os.walk(package, followlinks=True) for name in names)
    return {path.relative_to(package).as_posix() for path in found if "__pycache__" not in path.parts}


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_say_their_version(installed: Path, command: str) -> None:
    assert run(str(installed / command), "--version") == f"{command} {version()}\n"


def version() -> str:
    from voice_clone import __version__

    return __version__


def test_its_demo_speaks(installed: Path, tmp_path: Path) -> None:
    caches = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": ""}
    caches[cache_folder.VARIABLE] = os.environ.get(cache_folder.VARIABLE) or str(compiled())
    said = run(str(installed / "voice-clone-server"), "demo", "-o", "demo.wav", cwd=tmp_path, **caches)
    samples, rate = soundfile.read(tmp_path / "demo.wav")
    assert rate == 24000 and len(samples) > rate and np.std(samples) > 0.01, said


def compiled() -> Path:
    """Where this checkout keeps compiled code, which is that of the same sources elsewhere."""
    folder = cache_folder.writable_folder("packed")
    assert folder is not None
    return folder.parent
