"""Appends to the texts of a running server, without our client."""

from __future__ import annotations

import hashlib
import json
from types import TracebackType
from typing import Any

import numpy as np

from tests.support.servers.talker_calls import Call
from voice_clone_server.triton_server import TritonServer

FRAMES = 60
"""That a speech has whose text is appended, unless a test wants another number."""


class Writer:
    """One gRPC stream for the appends of one text or of several."""

    def __init__(self, server: TritonServer, stream_id: str) -> None:
        self.id = stream_id
        self.call = Call(server, {"cancel": "nobody's"}, empty_final=True)
        self._next()
        self._index = -1

    def send(self, text: str, last: bool = False, index: int | None = None, stream_id: str | None = None) -> None:
        """Send a piece, the next one if `index` is not given."""
        self._index += index is None
        number = np.array([self._index if index is None else index], np.int32)
        sent = {"append": stream_id or self.id, "text": text, "index": number, "last": np.array([last])}
        self.call.send(sent)

    def answer(self) -> Any:
        """The next answer: its `info`, or the error as text."""
        return self._next()

    def append(self, text: str, last: bool = False, **more: Any) -> Any:
        """Send a piece and wait for its answer."""
        self.send(text, last, **more)
        return self._next()

    def cancel(self, stream_id: str) -> Any:
        """Cancel a speech; returns the `info` of its text."""
        self.call.send({"cancel": stream_id})
        return self._next()

    def _next(self) -> Any:
        info = None
        while True:
            result = self.call.next()
            if isinstance(result, str):
                return result
            response = result.get_response()
            if response.outputs:
                info = json.loads(result.as_numpy("info")[0])
            if response.parameters["triton_final_response"].bool_param:
                return info

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call.close()


def heard(call: Call) -> tuple[str, dict[str, Any]]:
    """SHA of the audio of a speech, and its last info."""
    sha = hashlib.sha256()
    while True:
        result = call.next()
        assert not isinstance(result, str), result
        sha.update(result.as_numpy("audio").tobytes())
        if result.as_numpy("final")[0]:
            call.close()
            return sha.hexdigest(), json.loads(result.as_numpy("info")[0])


def failure(call: Call) -> str:
    """The error that ends a speech."""
    while not isinstance(result := call.next(), str):
        assert not result.as_numpy("final")[0]
    call.close()
    return result


def opened(server: TritonServer, writer: Writer, voice: str, text: str = "", **more: Any) -> Call:
    """A speech whose text is appended by `writer`."""
    inputs = {
        "text_stream": writer.id,
        "voice": voice,
        "seed": np.array([4], np.uint64),
        "max_frames": np.array([FRAMES], np.int32),
        "x_vector_only": np.array([True]),
        **({"text": text} if text else {}),
        **more,
    }
    return Call(server, inputs, model="qwen3_tts")
