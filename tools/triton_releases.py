"""Triton's releases, and what this project installs beside each. `python3 tools/triton_releases.py` prints the table.

    python3 tools/triton_releases.py 26.08                  the packages for that release, for pip
    python3 tools/triton_releases.py 26.08 onnxruntime      the same without a GPU

The Dockerfile calls it in the image of the release: with the Python there, and without any package. Only 24.10 has run
this project here, and a CPU build of 26.07 once. No image of any release was built. The tests of the graphs passed on
the CPU with each `onnxruntime` of the table, on Python 3.11.

Sources: Triton's `build.py` and `docs/introduction/compatibility.md` in the branches r24.10 to r26.08, the release
notes of 26.10, and the list of wheels of PyPI. They do not cover all of 26.09 to 26.11: what is None is not known here,
and their Python is that of the releases before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

NUMPY = "1.26.4"
"""With every release: numpy 2 crashes the Python backend of 24.10, and Triton builds all up to 26.08 with `numpy<2`."""
TORCH = "2.13.0"
"""With every release: torch brings its own CUDA along."""


@dataclass(frozen=True)
class Release:
    """One release.

    Attributes:
        name: as in nvcr.io/nvidia/tritonserver:NAME-py3.
        triton: the version that its server reports.
        python: of the image, whose Python backend takes no other.
        cuda: of the image.
        onnx_backend: the ONNX Runtime of Triton's own backend, which runs native encoders.
        onnxruntime: the package that runs graphs in our models: onnxruntime, and onnxruntime-gpu. The newest one of the
            same minor version as `onnx_backend`, and not newer, that both have; in 25.10 there is only a newer one.
        onnx_cuda: major version of the CUDA that onnxruntime-gpu wants. It finds that of torch.
    """

    name: str
    triton: str | None
    python: str
    cuda: str | None
    onnx_backend: str | None
    onnxruntime: str
    onnx_cuda: int

    @property
    def known(self) -> bool:
        """Whether all of it is known; else `onnxruntime` is that of the release before."""
        return None not in (self.triton, self.cuda, self.onnx_backend)

    @property
    def torch_build(self) -> str:
        """The build of torch whose CUDA onnxruntime-gpu can share: a suffix of its version, "" for PyPI's own."""
        return "+cu126" if self.onnx_cuda == 12 else ""

    def requirements(self, onnx_runtime: str = "onnxruntime-gpu") -> list[str]:
        """What pip shall install beside the package: exact versions. torch is left to the caller, for its build."""
        return [f"numpy=={NUMPY}", f"{onnx_runtime}=={self.onnxruntime}"]


RELEASES = tuple(
    Release(*row)
    for row in (
        ("24.10", "2.51.0", "3.10", "12.6", "1.19.2", "1.19.2", 12),
        ("24.11", "2.52.0", "3.10", "12.6", "1.19.2", "1.19.2", 12),
        ("24.12", "2.53.0", "3.12", "12.6", "1.20.1", "1.20.0", 12),
        ("25.01", "2.54.0", "3.12", "12.8", "1.20.1", "1.20.0", 12),
        ("25.02", "2.55.0", "3.12", "12.8", "1.20.1", "1.20.0", 12),
        ("25.03", "2.56.0", "3.12", "12.8", "1.21.0", "1.21.0", 12),
        ("25.04", "2.57.0", "3.12", "12.9", "1.21.0", "1.21.0", 12),
        ("25.05", "2.58.0", "3.12", "12.9", "1.22.0", "1.22.0", 12),
        ("25.06", "2.59.0", "3.12", "12.9", "1.22.0", "1.22.0", 12),
        ("25.07", "2.59.1", "3.12", "12.9", "1.22.0", "1.22.0", 12),
        ("25.08", "2.60.0", "3.12", "13.0", "1.23.0", "1.23.0", 12),
        ("25.09", "2.61.0", "3.12", "13.0", "1.23.0", "1.23.0", 12),
        ("25.10", "2.62.0", "3.12", "13.0", "1.23.1", "1.23.2", 12),
        ("25.11", "2.63.0", "3.12", "13.0", "1.23.2", "1.23.2", 12),
        ("25.12", "2.64.0", "3.12", "13.1", "1.23.2", "1.23.2", 12),
        ("26.01", "2.65.0", "3.12", "13.1", "1.23.2", "1.23.2", 12),
        ("26.02", "2.66.0", "3.12", "13.1", "1.24.1", "1.24.1", 12),
        ("26.03", "2.67.0", "3.12", "13.2", "1.24.2", "1.24.1", 12),
        ("26.04", "2.68.0", "3.12", "13.2", "1.24.4", "1.24.4", 12),
        ("26.05", "2.69.0", "3.12", "13.2", "1.24.4", "1.24.4", 12),
        ("26.06", "2.70.0", "3.12", "13.3", "1.24.4", "1.24.4", 12),
        ("26.07", "2.71.0", "3.12", "13.3", "1.27.0", "1.27.0", 13),
        ("26.08", "2.72.0", "3.12", "13.4", "1.28.0", "1.28.0", 13),
        ("26.09", None, "3.12", None, None, "1.28.0", 13),
        ("26.10", None, "3.12", "13.4", None, "1.28.0", 13),
        ("26.11", "2.75.0", "3.12", None, None, "1.28.0", 13),
    )
)
NEWEST = next(release for release in reversed(RELEASES) if release.known)
"""The newest of which all is known: what the Dockerfile takes by default."""


def find(name: str) -> Release:
    """The release of this name.

    Raises:
        LookupError: there is none in the table; with the names that are.
    """
    for release in RELEASES:
        if release.name == name:
            return release
    raise LookupError(f"no release {name!r} of Triton is known here; there are {', '.join(r.name for r in RELEASES)}")


def table() -> str:
    """All releases, one a line."""
    rows: list[tuple[str, ...]] = [
        ("release", "Triton", "Python", "CUDA", "ONNX backend", "onnxruntime", "numpy", "torch")
    ]
    for each in RELEASES:
        found = (each.triton, each.python, each.cuda, each.onnx_backend, each.onnxruntime, NUMPY)
        rows.append((each.name, *(value or "?" for value in found), f"{TORCH}{each.torch_build}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def main(arguments: Sequence[str], python: str = ".".join(map(str, sys.version_info[:2]))) -> int:
    """The command line; `python` is the version of the interpreter that runs it."""
    if not arguments:
        print(table())
        return 0
    try:
        release = find(arguments[0])
    except LookupError as error:
        print(f"tools/triton_releases: {error}", file=sys.stderr)
        return 2
    if python != release.python:
        print(
            f"tools/triton_releases: {release.name} has Python {release.python}, this is {python}; "
            "run it in the image of that release, and correct the table if this is that image",
            file=sys.stderr,
        )
        return 1
    if not release.known:
        print(f"{release.name}: not all of it is known here; with the packages of {NEWEST.name}", file=sys.stderr)
    print(*release.requirements(*arguments[1:2]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
