"""What `kubectl kustomize` makes of a folder, as far as tools/kubernetes uses it; needs no kubectl."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Objects = list[dict[str, Any]]
_KNOWN = {
    "apiVersion",
    "kind",
    "namespace",
    "labels",
    "resources",
    "components",
    "images",
    "patches",
    "generatorOptions",
    "configMapGenerator",
}


def render(folder: Path) -> Objects:
    """The objects of a kustomization."""
    return _apply(folder, [])


def _apply(folder: Path, objects: Objects) -> Objects:
    given = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert given.keys() <= _KNOWN, given.keys() - _KNOWN
    for name in given.get("resources", []):
        path = folder / name
        objects += render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    for generated in given.get("configMapGenerator", []):
        assert given["generatorOptions"] == {"disableNameSuffixHash": True}
        assert all("/" not in name for name in generated["files"]), "kustomize reads no files outside of its folder"
        data = {name: (folder / name).read_text(encoding="utf-8") for name in generated["files"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generated["name"]}, "data": data})
    for label in given.get("labels", []):
        for each in objects:
            each["metadata"].setdefault("labels", {}).update(label["pairs"])
    for component in given.get("components", []):
        objects = _apply(folder / component, objects)
    for patch in given.get("patches", []):
        _patch(objects, patch)
    for image in given.get("images", []):
        for container in containers(objects):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    for each in objects:
        if "namespace" in given:
            each["metadata"]["namespace"] = given["namespace"]
    return objects


def containers(objects: Objects) -> list[dict[str, Any]]:
    """All containers of the pods."""
    return [each for one in objects if (pod := pod_of(one)) is not None for each in pod["spec"]["containers"]]


def pod_of(one: dict[str, Any]) -> dict[str, Any] | None:
    """The template of an object's pods."""
    template: dict[str, Any] | None = one.get("spec", {}).get("template")
    return template


def _patch(objects: Objects, patch: dict[str, Any]) -> None:
    """JSON Patch (RFC 6902): add and remove."""
    target = patch["target"]
    [found] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (target["kind"], target["name"])]
    for step in yaml.safe_load(patch["patch"]):
        *path, last = step["path"].removeprefix("/").split("/")
        place: Any = found
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        value = copy.deepcopy(step.get("value"))
        if step["op"] == "remove":
            del place[last]
        elif last == "-":
            place.append(value)
        else:
            assert step["op"] == "add" and isinstance(place, dict)
            place[last] = value
