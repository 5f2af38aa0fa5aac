"""What Dockerfile, the files of Docker Compose and docs/deployment.md say. Needs no Docker."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from voice_clone_server.triton_server import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
DOCUMENT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")


def program(name: str) -> str:
    """The path of kubectl, helm or docker-compose, which render without a daemon; the test is skipped without it."""
    found = shutil.which(name, path=str(Path(sys.prefix) / "programs")) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (tools/test --thorough installs it)")
    return found


def compose(*files: str, **variables: str) -> dict[str, Any]:
    """What Docker Compose makes of docker-compose.yml and further files of tools/, with these variables.

    Raises:
        LookupError: Compose refuses them; with its message.
    """
    names = ["docker-compose.yml", *(f"tools/docker-compose.{name}.yml" for name in files)]
    done = subprocess.run(
        [program("docker-compose"), *(word for name in names for word in ("-f", name)), "config", "--format", "json"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LookupError(done.stderr)
    assert not done.stderr, done.stderr
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def instructions() -> list[tuple[str, str]]:
    """(keyword, arguments) of the Dockerfile, comments dropped and continued lines joined."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each named stage."""
    found: dict[str, list[tuple[str, str]]] = {}
    for keyword, arguments in instructions():
        if keyword == "FROM":
            found[arguments.split()[-1]] = current = [(keyword, arguments)]
        elif found:
            current.append((keyword, arguments))
    return found


def values(keyword: str, stage: str) -> list[str]:
    return [arguments for name, arguments in stages()[stage] if name == keyword]


def defaults(stage: str) -> dict[str, str]:
    """The build arguments of a stage; one without a default has that of the argument before the first stage."""
    found = [arguments for keyword, arguments in instructions() if keyword == "ARG"]
    above = dict(arguments.split("=", 1) for arguments in found if "=" in arguments)
    given = (arguments.partition("=") for arguments in values("ARG", stage))
    return {name: value if equals else above[name] for name, equals, value in given}


def commands(containing: str) -> str:
    """The one block of commands in docs/deployment.md with this text in it."""
    [block] = [text for text in re.findall(r"```bash\n(.*?)```", DOCUMENT, re.DOTALL) if containing in text]
    return str(block)


def metrics_in_manifests() -> set[str]:
    """Our metrics that the Kubernetes manifests name, without `voice_clone_`."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tools" / "kubernetes").rglob("*.yaml")]
    return {name for text in texts for name in re.findall(r"\bvoice_clone_(\w+)", text)}
