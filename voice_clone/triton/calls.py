"""Calls between the models of one server (BLS)."""

from __future__ import annotations

import logging
import re
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
_NOT_READY = re.compile("is not ready|unknown model")  # how it refuses a call of a model that it has not
_SHUTS_DOWN = "the server is shutting down"
_stopping = threading.Event()


def call(model: str, inputs: Mapping[str, Value | None], *, decoupled: bool = False) -> dict[str, Array]:
    """Ask another model of this server and wait for its answer (BLS); inputs that are None are left out.

    Args:
        decoupled: whether that model is decoupled; the outputs of its last response count.

    Returns: the outputs by name, copied; STRING outputs as object arrays of bytes.
    Raises: the VoiceCloneError that the model answered; Unsupported if no such model is loaded; Overloaded if the
        server stops.
    """
    if _stopping.is_set():
        raise Overloaded(_SHUTS_DOWN)
    tensors = [pb_utils.Tensor(name, as_array(value)) for name, value in inputs.items() if value is not None]
    request = pb_utils.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=[])
    answers = _all_of(request.exec(decoupled=True)) if decoupled else [request.exec()]
    outputs: dict[str, Array] = {}
    for answer in answers:
        if answer.has_error():
            message = answer.error().message()
            error = from_message(message)
            if isinstance(error, Internal) and _stops(message):
                raise Overloaded(_SHUTS_DOWN)
            if isinstance(error, Internal) and _NOT_READY.search(message):
                raise Unsupported(f"this server has no model {model}")
            if isinstance(error, Internal):
                log.error("the call of %s failed: %s", model, message)
            raise error
        outputs = {tensor.name(): tensor.as_numpy().copy() for tensor in answer.output_tensors()} or outputs
    return outputs


def _all_of(answers: Iterable[Any]) -> list[Any]:
    """All responses of a decoupled model. They stay alive for a while.

    A thread of python_backend clears up behind an iterator. Where it holds the last reference to a response, it frees
    the arrays in it. Releases before 24.12 do that without the GIL, which corrupts the heap (fault: freed-without-gil).
    So this process keeps a reference until that thread is done.

    An iterator is always read to its end (fault: half-read-iterator): newer releases hang after a few that are not.
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
    interpreter frees after that crashes the process, or hangs it, and the server with it (fault: freed-after-unmap).
    """
    with _answered_lock:
        if _answered:
            time.sleep(max(0.0, _answered[-1][0] + AT_THE_END - time.monotonic()))
        _answered.clear()


def is_ready(model: str) -> bool:
    """Whether the server has the model and has loaded it; False while the server stops.

    A request without inputs asks. Triton refuses it before the model gets it, for one reason if the model is ready, for
    another one if it is not. There is a call for this question, `is_model_ready` (fault: readiness-question). But while
    the server starts or stops, it breaks the memory that this process shares with the server, and one of the two dies
    (2.51). Later it answers with freed memory instead: text that is no UTF-8, or not what Triton wrote (2.71). A
    refusal that cannot be read counts as one of a model that is not ready: who asks does so again.
    """
    if _stopping.is_set():
        return False
    try:
        answer = pb_utils.InferenceRequest(model_name=model, inputs=[], requested_output_names=[]).exec()
        message = answer.error().message() if answer.has_error() else ""
    except Exception as error:  # TritonModelException, UnicodeDecodeError
        log.warning("whether %s is ready could not be read from Triton's answer: %r", model, error)
        return False
    return not _stops(message) and _NOT_READY.search(message) is None


def _stops(message: str) -> bool:
    """Whether Triton has refused a call because it stops. Then this process makes no further calls.

    About a second later the server unloads this model. A call that is under way at that moment never ends, and keeps
    the server up until its exit timeout (fault: call-at-unload).
    """
    if _SERVER_NOT_READY in message:
        _stopping.set()
    return _stopping.is_set()
