"""What Dockerfile, the files of Docker Compose and docs/deployment.md say. Needs no Docker."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.triton_server import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
DOCUMENT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
RESET = "!reset"  # Compose's own tag: it takes the entry of the file before away


def program(name: str) -> str:
    """The path of kubectl or docker-compose; the test is skipped without it. Neither needs a daemon to render files."""
    found = shutil.which(name, path=str(Path(sys.prefix) / "programs")) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (tools/test --thorough installs it)")
    return found


def compose(path: str) -> dict[str, Any]:
    """A file of Docker Compose; an entry with the tag `!reset` is that word."""
    text = (ROOT / path).read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(re.sub(rf"{RESET} .*", f'"{RESET}"', text))
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
    """The build arguments of a stage."""
    return dict(arguments.split("=", 1) for arguments in values("ARG", stage))


def commands(containing: str) -> str:
    """The one block of commands in docs/deployment.md with this text in it."""
    [block] = [text for text in re.findall(r"```bash\n(.*?)```", DOCUMENT, re.DOTALL) if containing in text]
    return str(block)


def interpolated(text: str, **variables: str) -> str:
    """The text with its variables as Compose sets them in: `${A:-default}`, `${A:+if set}`, `${A:?error}`, nested."""
    start = text.find("${")
    if start < 0:
        return text
    depth, end = 1, start + 2
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    name, operator, rest = re.fullmatch(r"(\w+)(:[-+?])?(.*)", text[start + 2 : end - 1]).groups("")  # type: ignore[union-attr]
    value = variables.get(name, "")
    if operator == ":?" and not value:
        raise LookupError(rest)
    if (operator == ":-" and not value) or (operator == ":+" and value):
        value = interpolated(rest, **variables)
    return text[:start] + value + interpolated(text[end:], **variables)


def metrics_in_manifests() -> set[str]:
    """Our metrics that the Kubernetes manifests name, without `voice_clone_`."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tools" / "kubernetes").rglob("*.yaml")]
    return {name for text in texts for name in re.findall(r"\bvoice_clone_(\w+)", text)}
