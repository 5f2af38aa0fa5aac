"""A model repository of speaker_cache and made-up voice encoders of several families, without any network.

The encoders return the artifact names, types and shapes of the real families, computed from the clip, so that a mix-up
of voices, families or modes shows. A repository of this kind starts in a second.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tests.support.doubles.fakes import FAMILIES, FakeEncoder
from voice_clone_server.triton_server import MODELS

TYPES = {
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
}

MODEL = '''"""A made-up voice encoder."""

import json
import os
import time
from pathlib import Path

import numpy as np

from tests.support.doubles.fakes import FakeEncoder
from voice_clone.triton.model import Model


class TritonPythonModel(Model):
    threads = 8

    def load(self, settings):
        self._encoder = FakeEncoder(os.environ.get("FAKE_CHECKPOINT", "a"))
        self._delay = float(os.environ.get("FAKE_DELAY", "0"))

    def handle(self, request, responder):
        waveform = request.array("waveform")
        if waveform.size:
            if "FAKE_BEGUN" in os.environ:
                Path(os.environ["FAKE_BEGUN"]).touch()
            time.sleep(self._delay)
        made = self._encoder.encode("{family}", waveform, request.number("sample_rate"), request.text("mode"))
        artifacts = {{name: np.atleast_1d(array) for name, array in made.artifacts.items()}}
        return {{**artifacts, "fingerprint": made.fingerprint, "modes": json.dumps(made.modes)}}
'''


def make_repository(folder: Path, families: tuple[str, ...] = tuple(FAMILIES)) -> Path:
    """Write the repository to `folder`."""
    shutil.copytree(MODELS / "speaker_cache", folder / "speaker_cache")
    for family in families:
        outputs: dict[str, tuple[str, int]] = {}
        for mode in FAMILIES[family][1]:
            made = FakeEncoder().encode(family, np.zeros(0, np.float32), 16000, mode)
            for name, array in made.artifacts.items():
                outputs[name] = (TYPES[array.dtype.name], max(1, array.ndim))
        lines = [
            f'  {{ name: "{name}" data_type: {kind} dims: [ {", ".join(["-1"] * ndim)} ] }},'
            for name, (kind, ndim) in outputs.items()
        ]
        model = folder / f"{family}_voice_encoder"
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_text(MODEL.format(family=family), encoding="utf-8")
        config = f'''name: "{model.name}"
backend: "python"
max_batch_size: 0
input [
  {{ name: "waveform" data_type: TYPE_FP32 dims: [ -1 ] }},
  {{ name: "sample_rate" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "mode" data_type: TYPE_STRING dims: [ 1 ] optional: true }}
]
output [
{chr(10).join(lines)}
  {{ name: "fingerprint" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "modes" data_type: TYPE_STRING dims: [ 1 ] }}
]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
'''
        (model / "config.pbtxt").write_text(config, encoding="utf-8")
    return folder
