"""What an environment or an image contains, and under which licences: python3 tools/contents.py

It needs nothing but Python, so an image can run it: docker run --rm -i --entrypoint python3 IMAGE - <tools/contents.py

The packages of this Python, what their wheels carry under the GPL, and Debian's packages, whose licences are in
/usr/share/doc. Exit status 1: a package of Python is under the GPL or AGPL, or has a library that is, and is not in
`ACCEPTED`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

ACCEPTED = {("av", "libx264"), ("av", "libx265")}
"""FFmpeg's video encoders, in the wheels of PyAV. They are loaded with FFmpeg, and nothing here encodes video."""
GPL = re.compile(r"(?<!Lesser )General Public|(?<![L\w])A?GPL")
GPL_LIBRARY = re.compile(r"lib(fftw3|gdbm|postproc|readline|rubberband|x264|x265|xvidcore)[-.\w]*\.so")
LONGEST = 60  # characters of the field `License`; some put the whole text there


@dataclass(frozen=True)
class Package:
    """One package.

    Attributes:
        kind: pypi or deb.
        licence: as its metadata have it; empty: they have none.
        carried: libraries under the GPL among its files.
    """

    kind: str
    name: str
    version: str
    licence: str
    carried: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether we must not import it."""
        if self.kind != "pypi":
            return False
        alternatives = self.licence.split(" OR ")
        return all(map(GPL.search, alternatives)) or any((self.name, each) not in ACCEPTED for each in self.carried)

    @property
    def purl(self) -> str:
        """Its name for all registries."""
        if self.kind == "deb":
            return f"pkg:deb/debian/{self.name}@{self.version}"
        return f"pkg:pypi/{re.sub('[-_.]+', '-', self.name).lower()}@{self.version}"


def of_python() -> Iterator[Package]:
    """The packages of this Python."""
    for name, found in sorted({each.name.lower(): each for each in metadata.distributions()}.items()):
        carried = sorted({f"lib{lib[1]}" for each in found.files or () if (lib := GPL_LIBRARY.match(each.name))})
        yield Package("pypi", name, found.version, _licence(found.metadata), tuple(carried))


def _licence(of: metadata.PackageMetadata) -> str:
    if expression := of.get_all("License-Expression"):
        return str(expression[0])
    named = [each.rpartition(" :: ")[2] for each in of.get_all("Classifier") or () if each.startswith("License ::")]
    text = str((of.get_all("License") or [""])[0]).strip()
    return ", ".join(named) or (text if len(text) <= LONGEST else "")


def of_debian() -> Iterator[Package]:
    """Debian's packages, where this is a Debian."""
    if shutil.which("dpkg-query"):
        asked = ["dpkg-query", "--show", "--showformat", "${Package} ${Version}\n"]
        for line in subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines():
            name, version = line.split()
            yield Package("deb", name, version, "")


def cyclonedx(packages: list[Package]) -> str:
    """A bill of materials, in CycloneDX's format 1.6."""
    components = []
    for each in packages:
        component: dict[str, Any] = {
            "type": "library",
            "bom-ref": each.purl,
            "name": each.name,
            "version": each.version,
            "purl": each.purl,
        }
        if each.licence:
            component["licenses"] = [{"license": {"name": each.licence}}]
        components.append(component)
    return json.dumps(
        {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}, indent=1
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cyclonedx", action="store_true", help="a bill of materials in place of the table")
    parser.add_argument("--without-system", action="store_true", help="leave out Debian's packages")
    given = parser.parse_args()
    packages = [*of_python(), *(() if given.without_system else of_debian())]
    if given.cyclonedx:
        print(cyclonedx(packages))
    else:
        for each in packages:
            licence = each.licence or ("see /usr/share/doc" if each.kind == "deb" else "not stated")
            carried = f"; carries {', '.join(each.carried)} (GPL)" if each.carried else ""
            print(f"{each.kind:5}{each.name:32}{each.version:24}{licence}{carried}")
    refused = [each.name for each in packages if each.refused]
    if refused:
        print(f"tools/contents: under the GPL: {', '.join(refused)}; the product must not import them", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
