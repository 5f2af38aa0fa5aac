"""What kubectl and Helm make of tools/kubernetes, checked against the schemas of Kubernetes. Needs no cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.support.official.deployment_files import program
from voice_clone_server.triton_server import ROOT

FOLDER = ROOT / "tools" / "kubernetes"
OVERLAYS = sorted(path for path in (FOLDER / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (FOLDER / "components").iterdir())
CHART = FOLDER / "chart"
OF_OPERATORS = ("monitoring.coreos.com/v1",)  # Kubernetes itself has no schema of these
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast

Objects = list[dict[str, Any]]


def render(folder: Path) -> Objects:
    """The objects that `kubectl kustomize` makes. Warnings, such as of fields that it gives up, are failures."""
    done = subprocess.run([program("kubectl"), "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return list(yaml.load_all(done.stdout, LOADER))


def with_components(overlay: Path, components: Sequence[str], scratch: Path) -> Path:
    """A copy of an overlay in which these components are switched on, by the line that is a comment in the file."""
    shutil.copytree(FOLDER, scratch / "kubernetes")
    copy = scratch / "kubernetes" / "overlays" / overlay.name
    file = copy / "kustomization.yaml"
    text, line = file.read_text(encoding="utf-8"), re.compile(r"^# components: \[.*\]$", re.MULTILINE)
    assert len(line.findall(text)) == 1
    paths = ", ".join(f"../../components/{name}" for name in components)
    file.write_text(line.sub(f"components: [{paths}]", text), encoding="utf-8")
    return copy


def helm(command: str, *arguments: object) -> str:
    """What a command of Helm prints.

    Raises:
        LookupError: Helm refuses it; with its message.
    """
    done = subprocess.run([program("helm"), command, *map(str, arguments)], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if "symbolic link" not in line]  # of haproxy.cfg
    if done.returncode:
        raise LookupError("\n".join([*said, done.stdout]))
    assert not any(said), said
    return done.stdout


def render_chart(*arguments: object, chart: Path = CHART) -> Objects:
    """The objects of the chart, as release `voice-clone` in the namespace `voice-clone`.

    Args:
        arguments: of `helm template`.
        chart: its folder, or a file that `helm package` made.
    """
    text = helm("template", "voice-clone", chart, "--namespace", "voice-clone", *arguments)
    return [each for each in yaml.load_all(text, LOADER) if each is not None]


def validate(objects: Objects) -> None:
    """Raises `kubernetes_validate.ValidationError` for what Kubernetes would refuse."""
    assert objects
    for each in objects:
        if each["apiVersion"] not in OF_OPERATORS:
            kubernetes_validate.validate(each, "1.37", strict=True)


def one(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    """The object of this kind and name."""
    [found] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(one: dict[str, Any]) -> dict[str, Any] | None:
    """The template of an object's pods."""
    template: dict[str, Any] | None = one.get("spec", {}).get("template")
    return template


def containers(objects: Objects) -> list[dict[str, Any]]:
    """All containers of the pods."""
    return [each for one in objects if (pod := pod_of(one)) is not None for each in pod["spec"]["containers"]]
