"""Python's garbage collector does not visit objects that a model has loaded: that would delay all of its streams."""

from __future__ import annotations

import json
from pathlib import Path

from tritonclient import grpc as triton

from tests.support.servers.single_model import write_model
from voice_clone_server.triton_server import TritonServer

MODEL = '''"""Tells of the garbage collector."""

import gc
import json

from voice_clone.triton.model import Model


class TritonPythonModel(Model):
    def load(self, settings):
        self._loaded = [[number] for number in range(100_000)]

    def handle(self, request, responder):
        return {"counts": json.dumps({"frozen": gc.get_freeze_count(), "collected": len(gc.get_objects())})}
'''

CONFIG = """name: "counter"
backend: "python"
max_batch_size: 0
output [ { name: "counts" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def test_loaded_objects_are_not_collected(tmp_path: Path) -> None:
    write_model(tmp_path / "models", MODEL, CONFIG)
    with (
        TritonServer(models=tmp_path / "models", log=tmp_path / "log") as server,
        triton.InferenceServerClient(server.url) as client,
    ):
        answer = client.infer("counter", []).as_numpy("counts")
    assert answer is not None
    counts = json.loads(answer[0])
    assert counts["frozen"] > 100_000 > 10 * counts["collected"]
