"""Calls between the models of one server (BLS)."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from voice_clone.errors import Internal, Overloaded, Unsupported, from_message
from voice_clone.triton.tensors import Array, Value, as_array

log = logging.getLogger(__name__)

CLEARED_UP = 60.0  # seconds after which python_backend has long forgotten an iterator; it takes less than a millisecond
_answered: deque[tuple[float, Any, list[Any]]] = deque()
_answered_lock = threading.Lock()
_SERVER_NOT_READY = "Server not ready"  # how Triton refuses every call while it stops


def call(model: str, inputs: Mapping[str, Value | None], *, decoupled: bool = False) -> dict[str, Array]:
    """Ask another model of this server and wait for its answer (BLS); inputs that are None are left out.

    Args:
        decoupled: whether that model is decoupled; the outputs of its last response count.

    Returns: the outputs by name, copied; STRING outputs as object arrays of bytes.
    Raises: the VoiceCloneError that the model answered; Unsupported if no such model is loaded; Overloaded if the
        server stops.
    """
    tensors = [pb_utils.Tensor(name, as_array(value)) for name, value in inputs.items() if value is not None]
    request = pb_utils.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=[])
    answers = _all_of(request.exec(decoupled=True)) if decoupled else [request.exec()]
    outputs: dict[str, Array] = {}
    for answer in answers:
        if answer.has_error():
            message = answer.error().message()
            error = from_message(message)
            if isinstance(error, Internal) and _SERVER_NOT_READY in message:  # then `is_model_ready` would be harmful
                raise Overloaded("the server is shutting down")
            if isinstance(error, Internal) and not is_ready(model):
                raise Unsupported(f"this server has no model {model}")
            if isinstance(error, Internal):
                log.error("the call of %s failed: %s", model, message)
            raise error
        outputs = {tensor.name(): tensor.as_numpy().copy() for tensor in answer.output_tensors()} or outputs
    return outputs


def _all_of(answers: Iterable[Any]) -> list[Any]:
    """All responses of a decoupled model, which then stay alive for a while.

    Before release 24.12 the thread of python_backend that clears up behind an iterator frees what nobody else holds
    without the GIL, arrays included (its pull request 390). That corrupts the heap, and the process dies some time
    later. So Python must be the last to let go of the responses.
    """
    with _answered_lock:
        while _answered and _answered[0][0] < time.monotonic() - CLEARED_UP:
            _answered.popleft()
    whole = list(answers)
    with _answered_lock:
        _answered.append((time.monotonic(), answers, whole))
    return whole


def is_ready(model: str) -> bool:
    """Whether the server has the model and has loaded it. Triton 2.51 raises for a name that it does not know."""
    try:
        return bool(pb_utils.is_model_ready(model))
    except pb_utils.TritonModelException:
        return False
