"""The responses of one inference request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from voice_clone.errors import Internal, VoiceCloneError
from voice_clone.triton.shared_memory import SharedMemory
from voice_clone.triton.tensors import Value, as_array, size_of

log = logging.getLogger(__name__)

_shared_memory = SharedMemory()


class Responder:
    """Sends the responses of one request and ends it exactly once. Thread-safe."""

    def __init__(self, sender: Any, request_id: str, dtypes: Mapping[str, Any]) -> None:
        self._sender = sender
        self._request_id = request_id
        self._dtypes = dtypes
        self._lock = threading.Lock()
        self._ended = False

    def cancelled(self) -> bool:
        """Whether the client has cancelled this request; False once it has ended."""
        with self._lock:
            # Asking after the FINAL flag reads freed memory and takes the whole server down (seen on 2.51).
            return not self._ended and bool(self._sender.is_cancelled())

    def send(self, outputs: Mapping[str, Value], final: bool = False) -> None:
        """One response; with `final` the last one. Does nothing once the request has ended.

        Raises:
            Overloaded: there is no room for it; the request has not ended then.
        """
        arrays = {name: as_array(value, self._dtypes[name]) for name, value in outputs.items()}
        tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
        self._send(pb_utils.InferenceResponse(output_tensors=tensors), final, sum(map(size_of, arrays.values())))

    def fail(self, error: BaseException) -> None:
        """End the request with an error."""
        if not isinstance(error, VoiceCloneError):
            log.error("request %s failed", self._request_id, exc_info=error)
            error = Internal(f"the server failed to handle request {self._request_id}")
        code = getattr(pb_utils.TritonError, error.code)
        self._send(pb_utils.InferenceResponse(error=pb_utils.TritonError(error.message, code)), final=True)

    def end(self) -> None:
        """End the request without another response, if it has not ended yet."""
        self._send(None, final=True)

    def _send(self, response: Any, final: bool, size: int = 0) -> None:
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        with self._lock:
            if self._ended:
                return
            with _shared_memory.room(size):
                self._ended = final
                if response is None:
                    self._sender.send(flags=flags)
                else:
                    self._sender.send(response, flags=flags)
