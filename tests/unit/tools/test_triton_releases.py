"""tools/triton_releases.py: each release is whole, and what it pins can be installed. Needs no Docker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tools.requirements import ROOT, project, requirements
from tools.requirements import pinned as pin
from tools.triton_releases import NEWEST, NUMPY, RELEASES, TORCH, Release, main
from voice_clone.onnx import session

EACH = pytest.mark.parametrize("release", RELEASES, ids=[release.name for release in RELEASES])
BY_WHEELS = {(release.python, release.onnxruntime): release for release in RELEASES}
"""One release for each choice of packages: pip has the same work for all that share it."""
BY_WHEEL = pytest.mark.parametrize(
    "release", BY_WHEELS.values(), ids=[f"{python}-{onnx}" for python, onnx in BY_WHEELS]
)
FOR_OLDEST, FOR_NEWEST = (BY_WHEELS[each.python, each.onnxruntime] for each in (RELEASES[0], NEWEST))
NAMES = ("onnxruntime", "onnxruntime-gpu")


def pinned() -> list[Requirement]:
    """What the image installs of ours, but the client: exact versions."""
    extras = ["torch", "server", "postgresql"]
    wanted = requirements(project(ROOT), extras)
    return [Requirement(pin(each)) for each in wanted if not each.startswith("voice-clone-")]


def plain(requirement: Requirement) -> str:
    """Without its marker, by which it belongs to an extra of ours."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def minor(version: str) -> tuple[int, int]:
    return Version(version).major, Version(version).minor


@EACH
def test_a_release_agrees_with_what_the_package_wants(release: Release) -> None:
    pins = {each.name: str(each.specifier) for each in pinned()}
    assert pins["numpy"] == f"=={NUMPY}" and pins["torch"] == f"=={TORCH}"
    assert release.python == ("3.10" if release.name < "24.12" else "3.12")
    assert session.OLDEST <= minor(release.onnxruntime) <= session.NEWEST, "the models would not take it"
    if release.onnx_backend:
        assert minor(release.onnx_backend) == minor(release.onnxruntime)
    assert release.requirements("onnxruntime") == [f"numpy=={NUMPY}", f"onnxruntime=={release.onnxruntime}"]
    assert release.torch_build == ("+cu126" if release.name < "26.07" else "")


def test_the_bounds_of_onnx_runtime_are_those_of_the_releases() -> None:
    versions = {minor(release.onnxruntime) for release in RELEASES}
    assert (min(versions), max(versions)) == (session.OLDEST, session.NEWEST)
    assert RELEASES[0].onnxruntime == session.ONNX_RUNTIME


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0 and capsys.readouterr().out.count("\n") == len(RELEASES) + 1
    assert main(["26.08"], "3.12") == 0
    assert capsys.readouterr() == ("numpy==1.26.4\nonnxruntime-gpu==1.28.0\n", "")
    assert main(["24.10", "onnxruntime"], "3.10") == 0
    assert capsys.readouterr() == ("numpy==1.26.4\nonnxruntime==1.19.2\n", "")
    assert main(["26.11"], "3.12") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == NEWEST.requirements() and "26.11: not all of it is known" in err
    assert main(["26.12"]) == 2 and "24.10, 24.11" in capsys.readouterr().err
    assert main(["26.08"], "3.14") == 1 and "26.08 has Python 3.12, this is 3.14" in capsys.readouterr().err


def test_it_runs_with_the_oldest_python_and_no_package() -> None:
    """As in the image. -S and -I: nothing that is installed here is found."""
    file = Path(__file__).parents[3] / "tools" / "triton_releases.py"
    done = subprocess.run([sys.executable, "-ISc", f"import runpy; runpy.run_path({str(file)!r})"], check=False)
    assert done.returncode == 0
    assert not re.search(r"^(from|import) (?!__future__|sys|dataclasses|collections)", file.read_text(), re.MULTILINE)


def resolve(folder: Path, python: str, *words: str) -> dict[str, list[Requirement]]:
    """What pip would install for that Python, from wheels alone, with what each of it requires."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"]
    command += ["--ignore-installed", "--only-binary", ":all:", "--python-version", python, "--report", str(report)]
    done = subprocess.run([*command, "--target", str(folder / "none"), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    return {each["name"]: list(map(Requirement, each.get("requires_dist", []))) for each in found}


@pytest.mark.long
@BY_WHEEL
def test_a_wheel_of_each_pinned_package_is_there(release: Release, tmp_path: Path) -> None:
    """For the image's Python; ONNX Runtime's takes our numpy, and wants the CUDA that the table says."""
    wanted = [*map(plain, pinned()), *(f"{name}=={release.onnxruntime}" for name in NAMES)]
    found = resolve(tmp_path, release.python, "--no-deps", *wanted)
    assert {name.lower().replace("_", "-") for name in found} == {Requirement(each).name for each in wanted}
    for name in NAMES:
        [numpy] = [each for each in found[name] if each.name == "numpy"]
        assert numpy.specifier.contains(NUMPY)
    cudas = {each.name.rpartition("-")[2] for each in found["onnxruntime-gpu"] if "cudnn" in each.name}
    assert cudas <= {f"cu{release.onnx_cuda}"}, "older ones do not say it"
    assert cudas or Version(release.onnxruntime) < Version("1.21")


@pytest.mark.long
@BY_WHEEL
def test_all_that_the_image_installs_goes_together(release: Release, tmp_path: Path) -> None:
    """With all that it requires. Between releases only ONNX Runtime differs, so torch's part is resolved for two."""
    with_torch = release in (FOR_OLDEST, FOR_NEWEST)
    wanted = [each for each in pinned() if with_torch or each.name != "torch"]
    found = resolve(tmp_path, release.python, *map(plain, wanted), *release.requirements())
    assert len(found) > len(wanted) and "onnxruntime-gpu" in found
    assert ("torch" in found) == with_torch
