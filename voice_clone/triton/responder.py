"""The responses of one inference request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from voice_clone.errors import Internal, VoiceCloneError
from voice_clone.triton.shared_memory import SharedMemory
from voice_clone.triton.tensors import Value, as_array, size_of

log = logging.getLogger(__name__)

open_requests: set[Responder] = set()
"""Of this process: the requests that have not ended."""
_sends: dict[Responder, float] = {}
_shared_memory = SharedMemory()
_FAILED = "the server failed to handle request"
_PLAIN = f"internal: {_FAILED}"


def oldest_send() -> float | None:
    """Of the responses of this process that Triton has not taken yet, when the first one was sent, on the monotonic
    clock; None: there are none."""
    return min(list(_sends.values()), default=None)


class Responder:
    """Sends the responses of one request and ends it exactly once. Thread-safe."""

    def __init__(self, sender: Any, request_id: str, dtypes: Mapping[str, Any]) -> None:
        self._sender = sender
        self._request_id = request_id
        self._dtypes = dtypes
        self._lock = threading.Lock()
        self._ended = False
        self._ending = False  # the final flag was on its way, whether or not it arrived
        open_requests.add(self)

    def cancelled(self) -> bool:
        """Whether the client has cancelled this request; False once it has ended."""
        with self._lock:
            # Asking after the FINAL flag reads freed memory, which ends the server (fault: asked-after-final).
            return not self._ending and bool(self._sender.is_cancelled())

    def send(self, outputs: Mapping[str, Value], final: bool = False) -> None:
        """One response; with `final` the last one. Does nothing once the request has ended.

        Raises:
            Overloaded: there is no room for it.
            Exception: it could not be sent. In both cases the request has not ended.
        """
        arrays = {name: as_array(value, self._dtypes[name]) for name, value in outputs.items()}
        tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
        response = pb_utils.InferenceResponse(output_tensors=tensors)
        with self._lock:
            if not self._ended:
                with _shared_memory.room(sum(map(size_of, arrays.values()))):
                    self._send(response, final)

    def fail(self, error: BaseException) -> None:
        """End the request with an error. Never raises: there is no other way to answer."""
        message, code = self._message(error)
        with self._lock:
            if not self._last(lambda: _error(message, code)) and not self._last(lambda: _error(_PLAIN, "INTERNAL")):
                self._last(lambda: None)

    def end(self) -> None:
        """End the request without another response, if it has not ended yet. Never raises."""
        with self._lock:
            self._last(lambda: None)

    def _message(self, error: BaseException) -> tuple[str, str]:
        """The message for the caller, and the name of its code."""
        try:
            if not isinstance(error, VoiceCloneError):
                log.error("request %s failed", self._request_id, exc_info=error)
                error = Internal(f"{_FAILED} {self._request_id}")
            return error.message, error.code
        except Exception:  # of an error that cannot say what it is
            return _PLAIN, "INTERNAL"

    def _last(self, make: Callable[[], Any]) -> bool:
        """Whether the request has ended: by the response that `make` makes, or before."""
        try:
            self._send(make(), final=True)
        except Exception:
            log.exception("request %s could not be ended", self._request_id)
        return self._ended

    def _send(self, response: Any, final: bool) -> None:
        if self._ended:
            return
        self._ending = self._ending or final
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        _sends[self] = time.monotonic()
        try:
            if response is None:
                self._sender.send(flags=flags)
            else:
                self._sender.send(response, flags=flags)
        finally:
            del _sends[self]
        self._ended = final
        if final:
            open_requests.discard(self)


def _error(message: str, code: str) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, getattr(pb_utils.TritonError, code)))
