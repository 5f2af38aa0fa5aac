"""The protocol double as a server that makes the same sound of the same text and seed, and another one of others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from tests.support.doubles.triton_double import FAMILY, RATE, Server, response


class RepeatableSpeech:
    """Lets a double speak so, and counts what it speaks.

    Each sentence has a loudness of its own.

    Attributes:
        spoken: how often each text was spoken.
        voice, synthesizer: digests of what speaks.
        misses: whether the end of a text is missed with a seed.
        before: called before each speech with its text.
    """

    def __init__(self, triton: Server) -> None:
        self.spoken = Counter[str]()
        self.voice, self.synthesizer = "v1", "s1"
        self.misses: Callable[[str, int], bool] = lambda text, seed: False
        self.before: Callable[[str], object] = lambda text: None
        self._triton = triton
        triton.play, triton.answer = self._play, self._answer

    def _answer(self, inputs: dict[str, Any]) -> dict[str, bytes]:
        self._triton.synthesizers = {FAMILY: self.synthesizer}
        return {"result": json.dumps({"name": "Ada", "digest": self.voice, "speakers": [], "presets": []}).encode()}

    def _play(self, context: Any) -> Iterator[Any]:
        text, [seed] = context.inputs["text"].decode(), context.inputs.get("seed", [0])
        self.before(text)
        self.spoken[text] += 1
        draw = np.random.default_rng([int(seed), *f"{self.voice}{self.synthesizer}{text}".encode()])
        loud = draw.uniform(0.02, 0.2)
        samples = (loud * draw.standard_normal(480 * (1 + len(text.split())))).astype(np.float32)
        reason = "budget" if self.misses(text, int(seed)) else "stop"
        info = {"finish_reason": reason, "voice_digest": self.voice, "synthesizer": self.synthesizer}
        info["mark"] = "marked"
        outputs = {
            "audio": samples,
            "sample_rate": np.array([RATE], np.int32),
            "chunk_index": np.array([0], np.int32),
            "final": np.array([True]),
            "info": json.dumps(info).encode(),
        }
        yield service_pb2.ModelStreamInferResponse(infer_response=response(outputs))
