"""Calls of a running server's speaker_cache without our client."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tritonclient.grpc as triton

from voice_clone_server.triton_server import TritonServer


class Cache:
    """The operations of the speaker_cache model, with nothing but tritonclient."""

    def __init__(self, server: TritonServer) -> None:
        self._client = triton.InferenceServerClient(server.url)

    def __call__(self, operation: str, **given: Any) -> tuple[dict[str, Any], bytes]:
        """`result` and `artifacts` of an operation."""
        inputs = []
        if "options" in given:
            given["options"] = json.dumps(given["options"])
        for name, value in {"operation": operation, **given}.items():
            encoded = value if isinstance(value, bytes) else str(value).encode()
            inputs.append(triton.InferInput(name, [1], "BYTES"))
            inputs[-1].set_data_from_numpy(np.array([encoded], np.object_))
        answer = self._client.infer("speaker_cache", inputs)
        return json.loads(answer.as_numpy("result")[0]), answer.as_numpy("artifacts")[0]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
