"""Faults of Triton that docs/operations.md names, each shown, or shown to be mended, on the server at hand.

With made-up models, not ours: these have the workarounds. Faults that crash a server only now and then are left out.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.support.servers.server_processes import process_of
from tests.support.servers.single_model import write_model
from tests.support.waiting import until
from tools.triton_server import TritonServer

pytestmark = pytest.mark.thorough

CONFIG = """
name: "{name}" backend: "python" max_batch_size: 0
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
CODE = """import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        pb_utils.get_input_tensor_by_name(request, "x").as_numpy().copy()
        tensor = pb_utils.Tensor("y", np.zeros(1, np.float32))
        {body}
"""
BODIES = {
    "plain": "return pb_utils.InferenceResponse([tensor])",
    "noting": 'return pb_utils.InferenceResponse([tensor], parameters={"note": "here"})',
    "failing": 'return pb_utils.InferenceResponse(error=pb_utils.TritonError("refused: by this step"))',
    "slow": "time.sleep(1.0); Path({done}).touch(); return pb_utils.InferenceResponse([tensor])",
}
ENSEMBLE = """
name: "both" platform: "ensemble" max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "a" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "b" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "failing" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "a" } },
  { model_name: "slow" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "b" } }
] }
"""
Start = Callable[..., TritonServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server with some of these models."""
    servers = []

    def start(*names: str) -> TritonServer:
        for name in names:
            body = BODIES[name].replace("{done}", repr(str(tmp_path / "done")))
            write_model(tmp_path / "models", CODE.replace("{body}", body), CONFIG.format(name=name))
        servers.append(TritonServer(None, models=tmp_path / "models", log=tmp_path / "log"))
        return servers[-1].start()

    yield start
    for server in servers:
        server.kill()
        server.stop()


def version(server: TritonServer) -> tuple[int, int]:
    """Of Triton, as the server says it."""
    with urllib.request.urlopen(f"{server.http}/v2", timeout=10.0) as answer:
        major, minor, *_ = json.load(answer)["version"].split(".")
    return int(major), int(minor)


def status(server: TritonServer, path: str) -> int:
    """Of an HTTP answer."""
    try:
        with urllib.request.urlopen(server.http + path, timeout=10.0) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def call(server: TritonServer, model: str) -> triton.InferResult:
    x = triton.InferInput("x", [1], "FP32")
    x.set_data_from_numpy(np.zeros(1, np.float32))
    with triton.InferenceServerClient(server.url) as client:
        return client.infer(model, [x], client_timeout=60.0)


def test_dead_model(start: Start) -> None:
    """It stays dead, and only a newer server says so."""
    server = start("plain")
    call(server, "plain")
    os.kill(process_of("plain", server), signal.SIGKILL)
    with pytest.raises(InferenceServerException, match=r"is not (healthy|ready)"):
        call(server, "plain")
    assert status(server, "/v2/health/live") == 200
    old, new = version(server) < (2, 65), version(server) >= (2, 68)  # what those between do is not known here
    if old or new:
        assert status(server, "/v2/models/plain/ready") == (200 if old else 400)


def test_overflowing_shape(start: Start) -> None:
    """The model's process dies of it. Ours then end the server, for nothing else starts such a process again."""
    server = start("plain")
    process = psutil.Process(process_of("plain", server))
    request = service_pb2.ModelInferRequest(model_name="plain")
    request.inputs.add(name="x", datatype="FP32", shape=[2**62])
    request.raw_input_contents.append(b"")
    with grpc.insecure_channel(server.url) as channel, pytest.raises(grpc.RpcError):
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=20.0)
    if version(server) >= (2, 68):
        call(server, "plain")
    else:
        until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_error_beside_step_and_repeated_prefix(start: Start, tmp_path: Path) -> None:
    """A newer server holds the error back until the other step has ended, and repeats its prefix."""
    write_model(tmp_path / "models", "", ENSEMBLE)
    server = start("failing", "slow")
    with pytest.raises(InferenceServerException) as caught:
        call(server, "both")
    waited, prefixes = (tmp_path / "done").exists(), str(caught.value).count("in ensemble 'both', ")
    assert "refused: by this step" in str(caught.value)
    if version(server) < (2, 67):
        assert (waited, prefixes) == (False, 1)
    elif version(server) >= (2, 71):
        assert waited and prefixes > 1


def test_response_parameters(start: Start) -> None:
    """What 25.02 brought; nothing here needs it."""
    server = start("noting")
    if version(server) < (2, 55):
        with pytest.raises(InferenceServerException, match="incompatible constructor arguments"):
            call(server, "noting")
    else:
        assert call(server, "noting").get_response().parameters["note"].string_param == "here"
