"""The least that Triton takes for the first answer of a speech: the server's wiring with models that do nothing.

The models of a model repository are written to a folder: one that asks a second, two that answer as decoupled models
do, and the ensemble of them, with one short text from each to the next.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

ENSEMBLE = "empty"
STEPS = ("empty_prompt", "empty_talker", "empty_code2wav")
ASKED = "empty_cache"

_TENSORS = """
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "answer" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
_DECOUPLED = "model_transaction_policy { decoupled: true }\n"
_MODEL = """
import triton_python_backend_utils as triton

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = request.inputs()[0].as_numpy().copy()
{asks}
            answer = triton.InferenceResponse([triton.Tensor("answer", values)])
            request.get_response_sender().send(answer, flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_ASKS = f"""
            asked = triton.InferenceRequest(
                model_name="{ASKED}", inputs=[triton.Tensor("text", values)], requested_output_names=["answer"]
            )
            values = asked.exec().output_tensors()[0].as_numpy().copy()
"""


def write(folder: Path) -> None:
    """Fill an empty folder with the repository."""
    for name in (*STEPS, ASKED):
        config = f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n{_TENSORS}'
        config += "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config + (_DECOUPLED if name in STEPS[1:] else ""))
        (folder / name / "1" / "model.py").write_text(_MODEL.format(asks=_ASKS if name == STEPS[0] else ""))
    names = ["text", *(f"after_{name}" for name in STEPS[:-1]), "answer"]
    steps = ", ".join(
        f'{{ model_name: "{step}" model_version: -1 input_map {{ key: "text" value: "{before}" }} '
        f'output_map {{ key: "answer" value: "{after}" }} }}'
        for step, before, after in zip(STEPS, names[:-1], names[1:], strict=True)
    )
    (folder / ENSEMBLE / "1").mkdir(parents=True)
    config = f'name: "{ENSEMBLE}"\nplatform: "ensemble"\nmax_batch_size: 0\n{_DECOUPLED}{_TENSORS}'
    (folder / ENSEMBLE / "config.pbtxt").write_text(f"{config}ensemble_scheduling {{ step [ {steps} ] }}\n")


def first_answers(url: str, runs: int, pause: float) -> Sequence[float]:
    """Milliseconds from the request to the answer, of so many requests with a pause between them."""
    text = triton.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"nothing"], np.object_))
    request = service_pb2.ModelInferRequest(model_name=ENSEMBLE)
    request.inputs.append(text._get_tensor())
    request.raw_input_contents.append(text._get_content())
    spent = []
    with grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(runs + 1):
            time.sleep(pause)
            began = time.perf_counter()
            arrivals = []
            for message in stub.ModelStreamInfer(iter([request])):
                if message.error_message:
                    raise SystemExit(message.error_message)
                arrivals.append(1e3 * (time.perf_counter() - began))
            spent.append(arrivals[0])
    return spent[1:]
