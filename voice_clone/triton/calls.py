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

CLEARED_UP = 60.0  # seconds in which python_backend clears up behind an iterator, though the machine is busy
AT_THE_END = 0.5  # the same where an unload waits for it; it takes milliseconds
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
    """All responses of a decoupled model. They stay alive for a while.

    A thread of python_backend clears up behind an iterator. Where it holds the last reference to a response, it frees
    the arrays in it. Releases before 24.12 do that without the GIL (pull request 390), which corrupts the heap. So this
    process keeps a reference until that thread is done.
    """
    whole, now = list(answers), time.monotonic()
    with _answered_lock:
        _answered.append((now, answers, whole))
        while _answered[0][0] < now - CLEARED_UP:
            _answered.popleft()
    return whole


def release_answers() -> None:
    """Release the responses that are still alive; a model calls it at its unload.

    They lie in memory that this process shares with the server. It is unmapped before the interpreter ends. What the
    interpreter frees after that crashes the process, or hangs it, and the server with it (seen on 2.51).
    """
    with _answered_lock:
        if _answered:
            time.sleep(max(0.0, _answered[-1][0] + AT_THE_END - time.monotonic()))
        _answered.clear()


def is_ready(model: str) -> bool:
    """Whether the server has the model and has loaded it. Triton 2.51 raises for a name that it does not know."""
    try:
        return bool(pb_utils.is_model_ready(model))
    except pb_utils.TritonModelException:
        return False
