"""The Helm chart of tools/kubernetes makes what the overlays make, and refuses wrong values. Needs no cluster."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.official.manifests import (
    CHART,
    COMPONENTS,
    FOLDER,
    OVERLAYS,
    Objects,
    containers,
    helm,
    one,
    pod_of,
    render,
    render_chart,
    validate,
    with_components,
)

pytestmark = pytest.mark.thorough

OF_WHOLE = {f"app.kubernetes.io/{name}" for name in ("part-of", "instance", "managed-by")} | {"helm.sh/chart"}
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SWITCHES = {"autoscaling": "autoscaling.enabled", "monitoring": "monitoring.enabled", "mps": "servers.mps"}
OTHERS = {  # another value than the default, where one of the same type is not enough
    "imagePullSecrets": [{"name": "registry"}],
    "servers.arguments": ["--restarts=3"],
    "servers.env": [{"name": "VOICE_CLONE_MAX_VOICES", "value": "5"}],
    "gateway.env": [{"name": "VOICE_CLONE_GATEWAY_STRICT", "value": "true"}],
    "servers.tolerations": [],
    "servers.resources": {"limits": {"memory": "48Gi"}},
    "gateway.resources": {"limits": {"memory": "2Gi"}},
    "balancer.resources": {"limits": {"memory": "2Gi"}},
    **{f"{part}.nodeSelector": {"pool": "speech"} for part in ("servers", "gateway", "balancer")},
}


def device(overlay: Path) -> list[object]:
    """The arguments of Helm with which the chart is that overlay."""
    return [] if overlay.name == "gpu" else ["--values", CHART / f"values-{overlay.name}.yaml"]


def switched(components: list[str]) -> list[object]:
    return [word for name in components for word in ("--set", f"{SWITCHES[name]}=true")]


def by_name(objects: Objects) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects by kind and name, without labels of the whole installation, and variables by name."""
    found = {}
    for each in copy.deepcopy(objects):
        labels = each["metadata"].pop("labels", {})
        each["metadata"]["labels"] = {name: labels[name] for name in set(labels) - OF_WHOLE}
        for container in containers([each]):
            container.get("env", []).sort(key=lambda variable: variable["name"])
        found[each["kind"], each["metadata"]["name"]] = each
    assert len(found) == len(objects)
    return found


def leaves(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its path; those of OTHERS are not looked into."""
    for name, value in values.items():
        path = f"{above}{name}"
        if isinstance(value, dict) and path not in OTHERS:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def another(path: str, value: Any) -> Any:
    if path in OTHERS:
        return OTHERS[path]
    if isinstance(value, bool):
        return not value
    return value + 5 if isinstance(value, int) else f"{value}-2"


def written(path: str, value: Any, scratch: Path) -> Path:
    """A file of values in which the one at this path is so."""
    for name in reversed(path.split(".")):
        value = {name: value}
    file = scratch / "values.yaml"
    file.write_text(json.dumps(value), encoding="utf-8")  # which is YAML
    return file


@cache
def rendered(arguments: tuple[object, ...]) -> Objects:
    return render_chart(*arguments)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
@pytest.mark.parametrize("components", [[], *([name] for name in COMPONENTS), COMPONENTS], ids="-".join)
def test_it_makes_the_objects_of_the_overlays(overlay: Path, components: list[str], tmp_path: Path) -> None:
    wanted = by_name(render(with_components(overlay, components, tmp_path)))
    found = by_name(render_chart(*device(overlay), *switched(components), "--set", "voiceStore.migrate=false"))
    assert set(found) == set(wanted)
    for key, each in wanted.items():
        assert found[key] == each, key


def test_the_migration_is_that_of_kustomize_before_all_else() -> None:
    [job] = [each for each in render_chart() if each["kind"] == "Job"]
    [wanted] = render(FOLDER / "migrate")
    assert job["spec"] == wanted["spec"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"


@pytest.mark.parametrize(("path", "value"), list(leaves(VALUES)), ids=[path for path, _ in leaves(VALUES)])
def test_every_value_has_an_effect(path: str, value: Any, tmp_path: Path) -> None:
    scaled = path.startswith("autoscaling.") and not path.endswith(".enabled")
    on = tuple(switched(["autoscaling"] if scaled else []))
    assert render_chart(*on, "--values", written(path, another(path, value), tmp_path)) != rendered(on)


def test_kubernetes_takes_what_all_values_make(tmp_path: Path) -> None:
    files: list[object] = []
    for number, (path, value) in enumerate(leaves(VALUES)):
        if path != "voiceStore.migrate":
            (tmp_path / str(number)).mkdir()
            files += ["--values", written(path, another(path, value), tmp_path / str(number))]
    objects = render_chart(*files)
    assert {"Job", "HorizontalPodAutoscaler", "ServiceMonitor"} <= {each["kind"] for each in objects}
    validate(objects)


def test_what_follows_from_the_times_of_a_server() -> None:
    objects = render_chart("--set", "servers.exitSeconds=300,servers.loadSeconds=600")
    server, balancer = (one(objects, "Deployment", name)["spec"] for name in ("server", "balancer"))
    for spec in (server, balancer):
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 345
    probe = server["template"]["spec"]["containers"][0]["startupProbe"]
    assert server["progressDeadlineSeconds"] == probe["periodSeconds"] * probe["failureThreshold"] == 600


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("servers.replica=2", "'replica' not allowed"),
        ("servers.replicas=0", "/servers/replicas"),
        ("servers.replicas=many", "/servers/replicas"),
        ("servers.image.tag=", "/servers/image/tag"),
        ("servers.loadSeconds=61", "/servers/loadSeconds"),
        ("servers.arguments={restarts}", "/servers/arguments/0"),
        ("servers.env[0].value=5", "/servers/env/0"),
        ("gateway.keys=Keys", "/gateway/keys"),
        ("voiceStore.port=70000", "/voiceStore/port"),
        ("autoscaling.enabled=yes", "/autoscaling/enabled"),
        ("balancer.replicas=2", "'replicas' not allowed"),
        ("redis=true", "'redis' not allowed"),
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: str, said: str) -> None:
    with pytest.raises(LookupError) as refused:
        render_chart("--set", wrong)
    assert said in str(refused.value)


def test_a_packed_chart_is_whole(tmp_path: Path) -> None:
    """A link in the folder, to the balancer's configuration, is a file in the package."""
    helm("package", CHART, "--destination", tmp_path)
    [packed] = tmp_path.glob("*.tgz")
    assert render_chart(chart=packed) == render_chart()
    configuration = one(render_chart(chart=packed), "ConfigMap", "balancer")["data"]["haproxy.cfg"]
    assert configuration.rstrip() == (FOLDER / "base" / "haproxy.cfg").read_text(encoding="utf-8").rstrip()


def test_helm_finds_no_fault() -> None:
    assert "0 chart(s) failed" in helm("lint", CHART, "--strict")


def test_another_namespace_and_release_are_taken() -> None:
    objects = render_chart("--namespace", "speech")
    assert {each["metadata"]["namespace"] for each in objects} == {"speech"}
    assert sum(pod_of(each) is not None for each in objects) == 4
