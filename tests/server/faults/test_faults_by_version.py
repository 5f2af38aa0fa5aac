"""Faults of Triton that docs/triton_faults.md names, each shown, or shown to be mended, on the server at hand.

And what newer servers have that docs/triton_features.md says is of no use here, with the facts by which it says so.
With made-up models, not ours: these have the workarounds. Faults that crash a server only now and then are left out.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
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
from voice_clone_server.triton_server import ServerFailed, TritonServer

pytestmark = pytest.mark.thorough

CONFIG = """
name: "{name}" backend: "python" max_batch_size: 0
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
model_transaction_policy {{ decoupled: {decoupled} }}
"""
CODE = """import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = [self.answer(request) for request in requests]
        return answers if all(answers) else None  # a stream has sent its own

    def answer(self, request):
        pb_utils.get_input_tensor_by_name(request, "x").as_numpy().copy()
        tensor = pb_utils.Tensor("y", np.zeros(1, np.float32))
        {body}

    def stream(self, request, tensor, first, error):
        sender = request.get_response_sender()
        time.sleep(first)
        sender.send(pb_utils.InferenceResponse([tensor]))
        sender.send(pb_utils.InferenceResponse([tensor]))
        last = pb_utils.InferenceResponse(error=error) if error else pb_utils.InferenceResponse([tensor])
        sender.send(last, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def ask(self, model, request, stream):
        x = pb_utils.Tensor("x", np.zeros(1, np.float32))
        asked = pb_utils.InferenceRequest(model_name=model, inputs=[x], requested_output_names=["y"])
        began = time.monotonic()
        found = asked.exec(decoupled=True) if stream else asked.exec()
        waited = time.monotonic() - began
        answers = list(found) if stream else [found]
        codes = [answer.error().code() for answer in answers if answer.has_error()]
        kept = codes == [pb_utils.TritonError.NOT_FOUND]
        y = np.array([waited, hasattr(found, "cancel"), len(answers), len(codes), kept], np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])
"""
SLOW = 10.0  # seconds that a step takes; far longer than the answer of another one is on its way
FIRST = 0.5  # seconds until the first response of the model that takes its time
STREAMS = ("patient", "late")
BODIES = {
    "plain": "return pb_utils.InferenceResponse([tensor])",
    "noting": 'return pb_utils.InferenceResponse([tensor], parameters={"note": "here"})',
    "failing": 'return pb_utils.InferenceResponse(error=pb_utils.TritonError("refused: by this step"))',
    "slow": f"time.sleep({SLOW}); Path({{done}}).touch(); return pb_utils.InferenceResponse([tensor])",
    # For calls from model to model: what they ask, and who asks.
    "absent": 'return pb_utils.InferenceResponse(error=pb_utils.TritonError("none", pb_utils.TritonError.NOT_FOUND))',
    "patient": f"return self.stream(request, tensor, {FIRST}, None)",
    "late": 'return self.stream(request, tensor, 0.0, pb_utils.TritonError("late", pb_utils.TritonError.NOT_FOUND))',
    **{f"asks_{name}": f"return self.ask({name!r}, request, {name in STREAMS})" for name in ("absent", *STREAMS)},
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
PASSING = """
name: "passing" platform: "ensemble" max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "noting" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
] }
"""
Start = Callable[..., TritonServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server with some of these models."""
    servers = []

    def start(*names: str, options: Sequence[str] = ()) -> TritonServer:
        for name in names:
            body = BODIES[name].replace("{done}", repr(str(tmp_path / "done")))
            write_model(
                tmp_path / "models",
                CODE.replace("{body}", body),
                CONFIG.format(name=name, decoupled=str(name in STREAMS).lower()),
            )
        servers.append(TritonServer(None, models=tmp_path / "models", log=tmp_path / "log", options=options))
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


def x() -> triton.InferInput:
    """What all models take."""
    return triton.InferInput("x", [1], "FP32").set_data_from_numpy(np.zeros(1, np.float32))


def call(server: TritonServer, model: str, timeout: float = 60.0) -> triton.InferResult:
    with triton.InferenceServerClient(server.url) as client:
        return client.infer(model, [x()], client_timeout=timeout)


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


Answer = tuple[float, bool, int, int, bool]


def ask(server: TritonServer, model: str, timeout: float = 60.0) -> Answer:
    """What a call from model to model brought.

    Returns: the seconds until `exec` returned, whether its iterator has `cancel`, the responses, the errors of them,
        and whether there was one error, with its code.
    """
    waited, cancel, responses, errors, kept = call(server, f"asks_{model}", timeout).as_numpy("y").tolist()
    return waited, bool(cancel), int(responses), int(errors), bool(kept)


def test_call_cancel(start: Start) -> None:
    """A call from model to model has no `cancel` before its first response, and on an older server none at all."""
    server = start("patient", "asks_patient")
    waited, cancel, responses, errors, _ = ask(server, "patient")
    assert waited >= FIRST, "the iterator, which has it, comes with the first response"
    assert (responses, errors) == (3, 0)
    assert cancel == (version(server) >= (2, 57))


def test_lost_late_error(start: Start) -> None:
    """Between models an older server loses an error that is not the first response, and the caller waits for ever."""
    server = start("late", "asks_late")
    if version(server) < (2, 57):
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            ask(server, "late", timeout=5.0)
    else:
        assert ask(server, "late")[2:] == (3, 1, True)


def test_lost_codes(start: Start) -> None:
    """Between models an older server makes one code of all; on a stream no server has one, unless it is asked to."""
    server = start("absent", "asks_absent", "late")
    assert ask(server, "absent")[3:] == (1, version(server) >= (2, 57))
    answers: queue.Queue[InferenceServerException] = queue.Queue()
    with triton.InferenceServerClient(server.url) as client:
        client.start_stream(lambda result, error: answers.put(error) if error else None)
        client.async_stream_infer("late", [x()])
        error = answers.get(timeout=60.0)
    assert "late" in error.message() and error.status() is None


@pytest.mark.parametrize("open_still", [False, True])
def test_open_stream(start: Start, tmp_path: Path, open_still: bool) -> None:
    """What a stream asked first keeps its model loaded until the stream is closed, though it has long been answered."""
    server = start("patient", options=["--exit-timeout-secs=3"] if open_still else [])
    answers: queue.Queue[object] = queue.Queue()
    with triton.InferenceServerClient(server.url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("patient", [x()], enable_empty_final_response=True)
        for _ in range(3):
            assert isinstance(answers.get(timeout=60.0), triton.InferResult)
        if not open_still:
            client.stop_stream()
        status = server.stop()
    log = (tmp_path / "log").read_text()
    assert ("Exit timeout expired" in log, status != 0) == (open_still, open_still)


def test_max_inflight_requests(start: Start, tmp_path: Path) -> None:
    """An older server loads no model with this field: a repository for all servers cannot have it."""
    newer = version(start("plain")) >= (2, 63)
    write_model(tmp_path / "models", "", ENSEMBLE.replace("step [", "max_inflight_requests: 2 step ["))
    if newer:
        assert start("failing", "slow").ready()
    else:
        with pytest.raises(ServerFailed):
            start("failing", "slow")
        assert 'has no field named "max_inflight_requests"' in (tmp_path / "log").read_text()


def test_response_parameters(start: Start, tmp_path: Path) -> None:
    """What 25.02 brought. They do not come out of an ensemble, which each of our public models is."""
    write_model(tmp_path / "models", "", PASSING)
    server = start("noting")
    if version(server) < (2, 55):
        with pytest.raises(InferenceServerException, match="incompatible constructor arguments"):
            call(server, "noting")
    else:
        assert call(server, "noting").get_response().parameters["note"].string_param == "here"
        assert "note" not in call(server, "passing").get_response().parameters
