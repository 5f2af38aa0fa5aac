"""Our models under KServe: its protocol, Open Inference (V2), by its own client and plain HTTP; its manifests.

The protocol: https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import kubernetes_validate
import pytest

from tests.support.official.manifests import FOLDER, OVERLAYS, one, render
from voice_clone_server import serve
from voice_clone_server.families.recognition import models_of
from voice_clone_server.triton_server import MODELS, ROOT, TritonServer, free_ports

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

CLIENT = ROOT / ".venv" / "kserve"  # made by tools/test --thorough
SCRIPT = ROOT / "tests" / "support" / "official" / "apps" / "kserve_calls.py"
FAMILY = "qwen3_tts"
NAMES = sorted(models_of([FAMILY], [MODELS]))
DATATYPES = {"BOOL", "BYTES"} | {f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)} | {"FP32"}


class KServe:
    """KServe's client in a process of its own: what it needs would change what the tests import."""

    def __init__(self, http: str, grpc: str) -> None:
        path = os.pathsep.join([str(CLIENT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), http, grpc],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._one = threading.Lock()

    def __call__(self, by: str, do: str, **given: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._one:
            self._process.stdin.write(json.dumps({"by": by, "do": do, **given}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        assert line, f"it ended with status {self._process.wait()}"
        return dict(json.loads(line))

    def infer(self, by: str, model: str, binary: bool, **inputs: str | bytes) -> dict[str, Any]:
        """`speaker_cache`'s outputs, as bytes, or what else the answer is."""
        sent = {
            name: base64.b64encode(value if isinstance(value, bytes) else value.encode()).decode()
            for name, value in inputs.items()
        }
        found = self(by, "infer", model=model, binary=binary, inputs=sent, outputs=["result", "artifacts"])
        if "answer" not in found:
            return found
        return {name: base64.b64decode(value) for name, value in found["answer"].items()}

    def close(self) -> None:
        with self._process as process:
            process.communicate(timeout=60)


@pytest.fixture(scope="module")
def kserve(server: TritonServer) -> Iterator[KServe]:
    if not CLIENT.is_dir():
        pytest.skip("KServe's client is not installed (tools/test --thorough installs it)")
    client = KServe(server.http, server.url)
    yield client
    client.close()


@pytest.fixture(scope="module")
def http(server: TritonServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.http, timeout=60.0) as client:
        yield client


@pytest.mark.parametrize("by", ["rest", "grpc"])
def test_each_model_is_ready_and_no_other(kserve: KServe, by: str) -> None:
    for name in NAMES:
        assert kserve(by, "model_ready", model=name) == {"answer": True}, name
    found = kserve(by, "model_ready", model="whisper")
    assert found == {"answer": False} or "NOT_FOUND: " in found["error"]


def test_the_server_is_live_and_ready(kserve: KServe, http: httpx2.Client) -> None:
    """Over HTTP, KServe's client reads a body that no tritonserver sends: there the status is the answer."""
    assert kserve("grpc", "live") == kserve("grpc", "ready") == {"answer": True}
    for state in ("live", "ready"):
        answer = http.get(f"/v2/health/{state}")
        assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("by", ["rest", "grpc"])
def test_a_clip_becomes_a_voice_and_is_gone(kserve: KServe, by: str, binary: bool, reference_clip: bytes) -> None:
    name = f"KServe {by} {binary}"
    clip = reference_clip if binary else b"data:audio/wav;base64," + base64.b64encode(reference_clip)
    uploaded = kserve.infer(by, "speaker_cache", binary, operation="upload", name=name, audio=clip)
    assert "result" in uploaded, uploaded
    assert json.loads(uploaded["result"])["name"] == name
    listed = kserve.infer(by, "speaker_cache", binary, operation="list")
    assert name in {each["name"] for each in json.loads(listed["result"])["speakers"]}
    exported = kserve.infer("grpc", "speaker_cache", True, operation="export", name=name)
    assert reference_clip in exported["artifacts"], "its bytes came another way"
    kserve.infer(by, "speaker_cache", binary, operation="prepare", name=name)  # else other tests would count that
    kserve.infer(by, "speaker_cache", binary, operation="delete", name=name)
    gone = kserve.infer(by, "speaker_cache", binary, operation="get", name=name)
    assert "speaker_not_found: " in gone["error"]


@pytest.mark.parametrize("by", ["rest", "grpc"])
def test_calls_of_a_model_that_streams_are_refused_and_say_why(kserve: KServe, by: str, voice: str) -> None:
    """V2's inference is one answer to one request; speech is many."""
    found = kserve.infer(by, FAMILY, False, text="Good morning.", voice=voice)
    assert found["error"].startswith({"rest": "501: ", "grpc": "UNIMPLEMENTED: "}[by]) and "decoupled" in found["error"]


@pytest.mark.parametrize("by", ["rest", "grpc"])
def test_wrong_requests_by_its_client(kserve: KServe, by: str) -> None:
    assert (
        "unexpected inference input 'operatoin'" in kserve.infer(by, "speaker_cache", False, operatoin="list")["error"]
    )
    assert "invalid_argument: " in kserve.infer(by, "speaker_cache", False, operation="sing")["error"]
    assert "unknown model" in kserve.infer(by, "whisper", False, operation="list")["error"]
    assert kserve.infer(by, "speaker_cache", False, operation="stats")["result"], "the server does not go on"


def test_metadata_of_the_server(http: httpx2.Client) -> None:
    found = http.get("/v2").json()
    assert found["name"] == "triton" and found["version"]
    assert {"model_configuration", "binary_tensor_data"} <= set(found["extensions"])


@pytest.mark.parametrize("name", NAMES)
def test_metadata_of_a_model_is_complete_and_its_configuration_agrees(http: httpx2.Client, name: str) -> None:
    found = http.get(f"/v2/models/{name}").json()
    assert found["name"] == name and found["platform"]
    for version in found["versions"]:
        assert http.get(f"/v2/models/{name}/versions/{version}").json() == found
        assert http.get(f"/v2/models/{name}/versions/{version}/ready").status_code == 200
    config = http.get(f"/v2/models/{name}/config").json()
    for kind in ("inputs", "outputs"):
        stated = {each["name"]: each for each in config[kind.removesuffix("s")]}
        assert found[kind] and {each["name"] for each in found[kind]} == set(stated)
        for each in found[kind]:
            assert each["datatype"] in DATATYPES
            assert each["datatype"] == stated[each["name"]]["data_type"].removeprefix("TYPE_").replace(
                "STRING", "BYTES"
            )
            assert each["shape"] == [int(size) for size in stated[each["name"]]["dims"]]


def test_an_answer_has_the_id_of_its_request(http: httpx2.Client) -> None:
    operation = {"name": "operation", "datatype": "BYTES", "shape": [1], "data": ["stats"]}
    asked = {"id": "request 7", "inputs": [operation], "outputs": [{"name": "result"}]}
    found = http.post("/v2/models/speaker_cache/infer", json=asked).json()
    assert (found["id"], found["model_name"], found["model_version"]) == ("request 7", "speaker_cache", "1")
    [output] = found["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("result", "BYTES", [1])
    assert FAMILY in json.loads(output["data"][0])["model_types"]


OPERATION = {"name": "operation", "datatype": "BYTES", "shape": [1], "data": ["list"]}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        # Triton's answer to what its parser refuses is 500. The protocol: an error status, "typically 400".
        (500, b"no JSON"),
        (500, b"[]"),
        (500, b"{}"),
        (500, {"inputs": [{**OPERATION, "shape": [-1]}]}),
        (500, {"inputs": [{**OPERATION, "data": [5]}]}),
        (400, b""),
        (400, {"inputs": []}),
        (400, {"inputs": [{**OPERATION, "datatype": "FP32", "data": [1.0]}]}),
        (400, {"inputs": [{**OPERATION, "datatype": "TEXT"}]}),
        (400, {"inputs": [{**OPERATION, "shape": [2]}]}),
        (400, {"inputs": [{**OPERATION, "shape": [2], "data": ["list", "list"]}]}),
        (400, {"inputs": [{key: value for key, value in OPERATION.items() if key != "data"}]}),
        (400, {"inputs": [OPERATION, OPERATION]}),
        (400, {"inputs": [OPERATION], "outputs": [{"name": "song"}]}),
    ],
    ids=repr,
)
def test_a_wrong_body_is_an_error_with_a_text(http: httpx2.Client, status: int, body: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = http.post("/v2/models/speaker_cache/infer", content=content)
    assert (answer.status_code, bool(answer.json()["error"])) == (status, True), answer.text
    assert http.get("/v2/health/ready").status_code == 200


def test_an_error_of_a_model_has_a_text_but_another_type(http: httpx2.Client) -> None:
    """So KServe's client, which looks for the type of JSON, shows none of the text; docs/fleet.md says so."""
    answer = http.post("/v2/models/speaker_cache/infer", json={"inputs": [{**OPERATION, "data": ["sing"]}]})
    assert answer.status_code == 400 and "invalid_argument: " in answer.json()["error"]
    assert answer.headers["content-type"] == "text/plain"


@pytest.mark.parametrize(
    "path", ["/v2/models/whisper", "/v2/models/whisper/config", "/v2/models/speaker_cache/versions/2", "/v3"]
)
def test_a_wrong_path_is_an_error(http: httpx2.Client, path: str) -> None:
    assert 400 <= http.get(path).status_code < 500


def test_calls_at_once_are_answered_each(http: httpx2.Client) -> None:
    def call(number: int) -> str:
        asked = {"id": str(number), "inputs": [{**OPERATION, "data": ["stats"]}]}
        return str(http.post("/v2/models/speaker_cache/infer", json=asked).json()["id"])

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(call, range(64))) == [str(number) for number in range(64)]


def manifests() -> tuple[dict[str, Any], dict[str, Any]]:
    objects = render(FOLDER / "kserve")
    return one(objects, "ServingRuntime", "voice-clone"), one(objects, "InferenceService", "voice-clone")


def test_kserve_s_models_know_each_field_of_the_manifests(kserve: KServe) -> None:
    runtime, service = manifests()
    for manifest in (runtime, service):
        assert kserve("models", "", manifest=manifest) == {"answer": []}
    wrong = {**runtime, "spec": {**runtime["spec"], "protocolVersion": ["v2"], "disabled": "no"}}
    assert sorted(kserve("models", "", manifest=wrong)["answer"]) == [
        "ServingRuntime.spec.disabled is no bool",
        "ServingRuntime.spec.protocolVersion is unknown",
    ]


def test_the_pod_of_the_runtime_is_one_that_kubernetes_takes() -> None:
    runtime, service = manifests()
    pod = {key: value for key, value in runtime["spec"].items() if key in ("containers", "volumes", "tolerations")}
    pod |= {
        key: value for key, value in service["spec"]["predictor"].items() if "Replicas" not in key and key != "model"
    }
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}, "1.37", strict=True
    )


def test_the_service_names_the_runtime_and_it_starts_a_server_as_the_fleet_does() -> None:
    runtime, service = manifests()
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    [container] = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container", "KServe looks for this name"
    [gpu] = [path for path in OVERLAYS if path.name == "gpu"]
    fleet = one(render(gpu), "Deployment", "server")["spec"]["template"]["spec"]
    [server] = fleet["containers"]
    assert container["image"] == server["image"] and container["env"] == server["env"]
    assert [word.replace("/mnt/models", "/checkpoint") for word in container["args"]] == server["args"]
    for name in ("resources", "lifecycle"):
        assert container[name] == server[name]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {port["name"]: port["containerPort"] for port in server["ports"]}
    assert next(iter(ports)) == "http", "KServe's Service has the first one at its own port"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = {**container[probe]["httpGet"], "port": "http"}
        assert container[probe]["httpGet"]["port"] == ports["http"]
        assert {**container[probe], "httpGet": asked} == server[probe]
    grace = service["spec"]["predictor"]["terminationGracePeriodSeconds"]
    assert grace == fleet["terminationGracePeriodSeconds"]
    kept = [volume for volume in fleet["volumes"] if volume["name"] != "checkpoint"]
    assert runtime["spec"]["volumes"] == kept
    free = [f"--{kind}-port={port}" for kind, port in zip(("grpc", "http", "metrics"), free_ports(3), strict=True)]
    serve.parse([*container["args"][3:], *free])
