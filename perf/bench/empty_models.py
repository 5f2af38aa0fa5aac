"""The server's wiring with models that do nothing: the least time that Triton takes for a speech.

Ensemble and configurations are the real ones, so the same tensors are passed. Each model answers at once with zeros;
the prompt calls the speaker cache first.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from voice_clone_server.triton_server import MODELS

_MODEL = '''"""Answers with one zero for each output."""

import json

import numpy as np
import triton_python_backend_utils as triton

KINDS = {"TYPE_FP32": np.float32, "TYPE_INT32": np.int32, "TYPE_BOOL": np.bool_, "TYPE_STRING": np.object_}


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self._outputs = [(each["name"], KINDS[each["data_type"]], len(each["dims"])) for each in config["output"]]
        self._asks = config["name"] == "qwen3_tts_prompt"

    def execute(self, requests):
        for request in requests:
            for tensor in request.inputs():
                tensor.as_numpy().copy()
            if self._asks:
                operation = triton.Tensor("operation", np.array([b"resolve"], np.object_))
                asked = triton.InferenceRequest(
                    model_name="speaker_cache", inputs=[operation], requested_output_names=[]
                )
                [tensor.as_numpy().copy() for tensor in asked.exec().output_tensors()]
            answer = triton.InferenceResponse([self._zero(*output) for output in self._outputs])
            request.get_response_sender().send(answer, flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _zero(self, name, kind, dimensions):
        value = b"" if kind is np.object_ else name in ("final", "sample_rate")  # one Hz: the client divides by it
        return triton.Tensor(name, np.full([1] * dimensions, value, kind))
'''


def write(folder: Path) -> None:
    """Make a model repository of a folder that is not there yet."""
    shutil.copytree(MODELS, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for model in MODELS.glob("*/1/model.py"):
        (folder / model.relative_to(MODELS)).write_text(_MODEL)
