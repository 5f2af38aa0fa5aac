"""An answer for which shared memory has no room is an error, and the service goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.utils
from tritonclient import grpc as triton

from tests.support.servers.single_model import write_model
from voice_clone_server.triton_server import TritonServer

MODEL = '''"""Answers with as many bytes as it is asked for, on a machine that has 10 MB of shared memory left."""

import os
from types import SimpleNamespace

from voice_clone.triton.model import Model

os.statvfs = lambda folder: SimpleNamespace(f_bavail=2500, f_frsize=4096)


class TritonPythonModel(Model):
    def handle(self, request, responder):
        return {"answer": b"x" * request.number("size")}

    def load(self, settings):
        pass
'''

CONFIG = """name: "answers"
backend: "python"
max_batch_size: 0
input [ { name: "size" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "answer" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def test_an_answer_without_room_is_refused_and_others_are_sent(tmp_path: Path) -> None:
    write_model(tmp_path / "models", MODEL, CONFIG)

    def answer(size: int) -> int:
        asked = triton.InferInput("size", [1], "INT32")
        found = client.infer("answers", [asked.set_data_from_numpy(np.array([size], np.int32))]).as_numpy("answer")
        return len(found[0])

    with (
        TritonServer(models=tmp_path / "models", log=tmp_path / "log") as server,
        triton.InferenceServerClient(server.url) as client,
    ):
        for _ in range(2):
            assert answer(5_000_000) == 5_000_000
            with pytest.raises(tritonclient.utils.InferenceServerException, match=r"overloaded: .*20 MB.*10 MB left"):
                answer(20_000_000)
        assert answer(5) == 5
        server.kill()
