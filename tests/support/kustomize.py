"""What `kubectl kustomize` makes of a folder of tools/kubernetes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.deployment_files import program

Objects = list[dict[str, Any]]


def render(folder: Path) -> Objects:
    """The objects of a kustomization. Warnings, such as of fields that kustomize gives up, are failures."""
    done = subprocess.run([program("kubectl"), "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def containers(objects: Objects) -> list[dict[str, Any]]:
    """All containers of the pods."""
    return [each for one in objects if (pod := pod_of(one)) is not None for each in pod["spec"]["containers"]]


def pod_of(one: dict[str, Any]) -> dict[str, Any] | None:
    """The template of an object's pods."""
    template: dict[str, Any] | None = one.get("spec", {}).get("template")
    return template
