"""tools/contents.py: which licences it refuses, and that it runs alone and describes this environment."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import pytest

from tools.contents import GPL_LIBRARY, Package
from voice_clone_server.triton_server import ROOT


@pytest.mark.parametrize(
    "licence", ["GPL-3.0-only", "AGPL-3.0-or-later", "GNU General Public License v2 (GPLv2)", "MIT AND GPL-2.0-only"]
)
def test_a_package_under_the_gpl_is_refused(licence: str) -> None:
    assert Package("pypi", "strict", "1.0", licence).refused
    assert not Package("deb", "strict", "1.0", licence).refused, "a program of the system, which we do not import"


@pytest.mark.parametrize(
    "licence",
    ["MIT", "", "LGPL-2.1-or-later", "GNU Lesser General Public License v3 (LGPLv3)", "GPL-2.0-only OR Apache-2.0"],
)
def test_other_licences_are_not(licence: str) -> None:
    assert not Package("pypi", "mild", "1.0", licence).refused


def test_a_library_in_a_wheel_counts() -> None:
    assert Package("pypi", "video", "1.0", "MIT", ("libx264",)).refused
    assert not Package("pypi", "av", "17.1.0", "BSD-3-Clause", ("libx264", "libx265")).refused
    assert GPL_LIBRARY.match("libx264-d6533a8d.so.165") and not GPL_LIBRARY.match("libopus-114e2b1a.so.0.11.1")


@pytest.mark.parametrize("options", [[], ["--cyclonedx"]])
def test_it_runs_alone_and_finds_what_is_here(options: list[str]) -> None:
    """From its standard input and without our packages on the path, as in an image."""
    with (ROOT / "tools" / "contents.py").open("rb") as file:
        command = [sys.executable, "-I", "-", *options]
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, "nothing that we import is under the GPL"
    numpy = metadata.version("numpy")
    if options:
        components = json.loads(done.stdout)["components"]
        assert f"pkg:pypi/numpy@{numpy}" in {each["purl"] for each in components}
        assert len({each["bom-ref"] for each in components}) == len(components)
    else:
        assert ["pypi", "numpy", numpy, "BSD"] in [line.split()[:4] for line in done.stdout.splitlines()]
