"""tools/kubernetes: what Kubernetes would refuse, and whatever the files name is there. Needs no cluster."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from voice_clone_client.servers import addresses, affinity
from voice_clone_gateway.app import server_options
from voice_clone_gateway.http.metrics import router as metrics_router
from voice_clone_gateway.routes.models import health_router
from voice_clone_gateway.settings import Settings as GatewaySettings

from tests.support.official.deployment_files import compose, stages, values
from tests.support.official.manifests import (
    COMPONENTS,
    FOLDER,
    OF_OPERATORS,
    OVERLAYS,
    Objects,
    containers,
    one,
    pod_of,
    render,
    validate,
    with_components,
)
from voice_clone_server import serve
from voice_clone_server.command import PROGRAMS
from voice_clone_server.triton_server import free_ports

pytestmark = pytest.mark.thorough

CONFIGURATION = FOLDER / "base" / "haproxy.cfg"
DNS_SECONDS = 5  # for which a cluster's names are remembered by their servers
BEYOND = 15  # seconds that tools/serve waits for tritonserver after its exit timeout


@pytest.fixture(scope="module", params=OVERLAYS, ids=lambda path: path.name)
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """Of an overlay with all components."""
    return render(with_components(request.param, COMPONENTS, tmp_path_factory.mktemp("kubernetes")))


@pytest.mark.parametrize("folder", [*OVERLAYS, FOLDER / "migrate"], ids=lambda path: path.name)
def test_every_cluster_takes_every_object(folder: Path) -> None:
    """No object needs an operator: where that is missing, `kubectl apply` fails."""
    objects = render(folder)
    assert not [each["kind"] for each in objects if each["apiVersion"] in OF_OPERATORS]
    validate(objects)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_goes_with_every_overlay(overlay: Path, component: str, tmp_path: Path) -> None:
    before, objects = render(overlay), render(with_components(overlay, [component], tmp_path))
    assert objects != before
    validate(objects)


def test_mistakes_would_be_found(tmp_path: Path) -> None:
    [budget] = [each for each in render(OVERLAYS[0]) if each["kind"] == "PodDisruptionBudget"][:1]
    with pytest.raises(kubernetes_validate.ValidationError):
        validate([{**budget, "spec": {"maxUnavailabel": 1}}])
    copy = with_components(OVERLAYS[0], [], tmp_path)
    with (copy / "kustomization.yaml").open("a", encoding="utf-8") as file:
        file.write("  - target: {kind: Deployment, name: server}\n    patch: '[{op: remove, path: /spec/replicas}]'\n")
    with pytest.raises(AssertionError, match="unable to parse"):
        render(copy)


def test_alerts_are_rules_of_prometheus(objects: Objects, tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (on Debian: apt-get install prometheus)")
    [rule] = [each for each in objects if each["kind"] == "PrometheusRule"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "4 rules found" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("folder", [*OVERLAYS, FOLDER / "migrate"], ids=lambda path: path.name)
def test_images_are_ours_or_pinned(folder: Path) -> None:
    services = compose("fleet", CHECKPOINT="tests", DATABASE_PASSWORD="secret")["services"]
    built = {service["image"] for service in services.values() if "build" in service}
    for container in containers(render(folder)):
        image, _, tag = container["image"].rpartition(":")
        assert image, f"{container['image']} has no version"
        assert image.removeprefix("registry.example/") in built or f"{image}:{tag}" == services["balancer"]["image"]


def test_ports_and_probes_are_those_of_the_programs(objects: Objects) -> None:
    exposed = {"server": values("EXPOSE", "server")[0].split(), "gateway": values("EXPOSE", "gateway")}
    exposed["balancer"] = [re.findall(r"^    bind :(\d+)", CONFIGURATION.read_text(), re.MULTILINE)[0]]
    pages = {f"/v2/health/{state}" for state in ("ready", "live")}
    routes = {getattr(route, "path", "") for route in (*health_router.routes, *metrics_router.routes)}
    for name, ports in exposed.items():
        [container] = one(objects, "Deployment", name)["spec"]["template"]["spec"]["containers"]
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert sorted(map(str, named.values())) == sorted(ports)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe not in container:
                continue
            [asked] = [container[probe][kind] for kind in ("httpGet", "tcpSocket") if kind in container[probe]]
            assert asked["port"] in named
            if name == "server":
                assert asked["path"] in pages
            elif name == "gateway":
                assert asked["path"] in routes
    for service in [each for each in objects if each["kind"] == "Service"]:
        target = one(objects, "Deployment", service["spec"]["selector"]["app.kubernetes.io/name"])
        [container] = target["spec"]["template"]["spec"]["containers"]
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        for port in service["spec"]["ports"]:
            assert named[port["targetPort"]] == port["port"]
    for monitor in [each for each in objects if each["kind"] == "ServiceMonitor"]:
        labels = monitor["spec"]["selector"]["matchLabels"]
        [service] = [
            each
            for each in objects
            if each["kind"] == "Service" and labels.items() <= each["metadata"]["labels"].items()
        ]
        assert {each["port"] for each in monitor["spec"]["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}


def test_every_selector_selects_pods_and_every_reference_is_there(objects: Objects) -> None:
    pods = [pod["metadata"]["labels"] for each in objects if (pod := pod_of(each)) is not None]
    for each in objects:
        if each["kind"] in ("PodDisruptionBudget", "NetworkPolicy", "Deployment"):
            selector = each["spec"].get("selector") or each["spec"]["podSelector"]
            assert sum(selector["matchLabels"].items() <= labels.items() for labels in pods) == 1, each["metadata"]
    maps = {each["metadata"]["name"] for each in objects if each["kind"] == "ConfigMap"}
    for each in objects:
        if (pod := pod_of(each)) is None:
            continue
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        [container] = pod["spec"]["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        assert all(volume["configMap"]["name"] in maps for volume in volumes.values() if "configMap" in volume)
    for scaler in [each for each in objects if each["kind"] == "HorizontalPodAutoscaler"]:
        target = scaler["spec"]["scaleTargetRef"]
        assert "replicas" not in one(objects, target["kind"], target["name"])["spec"], "two would set their number"


def test_a_server_s_command_and_mounts(objects: Objects, tmp_path: Path) -> None:
    spec = one(objects, "Deployment", "server")["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["args"][:2] == ["voice-clone-server", "serve"]
    ports = [f"--{kind}-port={port}" for kind, port in zip(("grpc", "http", "metrics"), free_ports(3), strict=True)]
    _, given = serve.parse([*container["args"][2:], *ports])
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert [str(path) for path in given.checkpoint] == ["/checkpoint"] and "/checkpoint" in mounts
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= given.load_seconds
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert compose(CHECKPOINT="tests")["services"]["server"]["shm_size"] == str(2 << 30)
    written = {path for line in values("ENV", "server") for path in re.findall(r"=(/cache|/tmp)", line)} | {"/tmp"}
    assert "/cache" in written <= set(mounts), "the root file system is read-only"


def test_with_mps_a_server_starts_as_with_compose(tmp_path: Path) -> None:
    gpu = FOLDER / "overlays" / "gpu"
    before, objects = render(gpu), render(with_components(gpu, ["mps"], tmp_path))
    [container] = one(objects, "Deployment", "server")["spec"]["template"]["spec"]["containers"]
    [plain] = one(before, "Deployment", "server")["spec"]["template"]["spec"]["containers"]
    service = compose("mps", CHECKPOINT="tests")["services"]["server"]
    assert container["command"] == [word.replace("$$", "$") for word in service["entrypoint"]]
    assert container["args"] == plain["args"]
    added = {each["name"]: each["value"] for each in container["env"] if each not in plain["env"]}
    assert added == service["environment"]
    assert {"/tmp", "/dev/shm"} <= {mount["mountPath"] for mount in container["volumeMounts"]}, "MPS writes there"


@pytest.mark.parametrize("folder", [*OVERLAYS, FOLDER / "migrate"], ids=lambda path: path.name)
def test_no_container_has_privileges(folder: Path) -> None:
    pods = [pod["spec"] for each in render(folder) if (pod := pod_of(each)) is not None]
    assert pods
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert not context["allowPrivilegeEscalation"] and context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"]


def test_there_is_time_to_end(objects: Objects) -> None:
    """A server goes from all lists of addresses before it stops, and its speeches may end before it is killed."""
    pods = {name: one(objects, "Deployment", name)["spec"]["template"]["spec"] for name in ("server", "gateway")}
    pause = {name: pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] for name, pod in pods.items()}
    assert pause["server"] > DNS_SECONDS + addresses.REFRESH_SECONDS
    [exit_seconds] = [
        int(word.partition("=")[2])
        for word in pods["server"]["containers"][0]["args"]
        if word.startswith("--exit-seconds=")
    ]
    assert pods["server"]["terminationGracePeriodSeconds"] >= pause["server"] + exit_seconds + BEYOND + 10
    graceful = server_options(GatewaySettings())["timeout_graceful_shutdown"]
    assert pods["gateway"]["terminationGracePeriodSeconds"] >= pause["gateway"] + graceful + 5


def test_only_those_without_keys_reach_a_server(objects: Objects) -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "NetworkPolicy"}
    assert set(policies) == {each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"}
    for rule in policies["server"]["ingress"]:
        assert rule["from"], "everybody"
        for peer in rule["from"]:
            [(kind, selector)] = peer.items()
            name = next(iter(selector["matchLabels"].values()))
            assert (kind, name) == ("namespaceSelector", "monitoring") or name in ("gateway", "balancer")
    environment = {
        each["name"]: each.get("value")
        for each in one(objects, "Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    [mount] = [
        mount["mountPath"]
        for mount in one(objects, "Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        if mount["name"] == "keys"
    ]
    assert environment["VOICE_CLONE_GATEWAY_API_KEYS_FILE"] == f"{mount}/keys"
    service, _, port = environment["VOICE_CLONE_GATEWAY_TRITON"].removeprefix("dns:///").rpartition(":")
    headless = one(objects, "Service", service)
    assert headless["spec"]["clusterIP"] == "None" and int(port) in {each["port"] for each in headless["spec"]["ports"]}


def test_secrets_are_never_written_here_but_referred_to(objects: Objects) -> None:
    assert not [each for each in objects if each["kind"] == "Secret"]
    for container in containers(objects):
        for variable in container.get("env", []):
            if "STORE" in variable["name"]:
                assert "secretKeyRef" in variable["valueFrom"]


def test_the_balancer_s_configuration() -> None:
    text = CONFIGURATION.read_text(encoding="utf-8")
    assert f"balance hdr({affinity.HEADER})" in text and f"stick on req.hdr({affinity.STREAM_HEADER})" in text
    if shutil.which("haproxy") is None:
        pytest.skip("HAProxy is not installed (on Debian: apt-get install haproxy)")
    found = subprocess.run(
        ["haproxy", "-c", "-f", CONFIGURATION],
        env={**os.environ, "SERVERS": "localhost"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0 and "WARNING" not in found.stderr, found.stderr


def test_the_job_that_migrates_has_its_program_in_the_image() -> None:
    [container] = containers(render(FOLDER / "migrate"))
    words = container["args"]
    assert words[0] == "voice-clone-server" and words[1] in PROGRAMS
    assert "server" in stages()
