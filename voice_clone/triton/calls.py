"""Calls between the models of one server (BLS)."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import triton_python_backend_utils as pb_utils

from voice_clone.errors import Internal, Overloaded, Unsupported, VoiceCloneError, from_message
from voice_clone.triton.tensors import Array, Value, as_array, size_of

log = logging.getLogger(__name__)

CLEARED_UP = 60.0  # seconds in which python_backend clears up behind an iterator, though the machine is busy
ROOM = 256 << 20  # bytes of responses that are kept so long; of more, those go that are older than `HURRIED`
HURRIED = 5.0
AT_THE_END = 0.5  # the same where an unload waits for it; it takes milliseconds
_answered: deque[tuple[float, int, Any, list[Any]]] = deque()
_answered_lock = threading.Lock()
_SERVER_NOT_READY = "Server not ready"  # how Triton refuses every call while it stops
_NOT_READY = re.compile("is not ready|unknown model")  # how it refuses a call of a model that it has not
_SHUTS_DOWN = "the server is shutting down"
_stopping = threading.Event()

passed_on: ContextVar[Mapping[str, Any]] = ContextVar("passed_on", default=MappingProxyType({}))
"""Parameters of the request for which this thread works, which go with each call."""


def call(model: str, inputs: Mapping[str, Value | None], *, decoupled: bool = False) -> dict[str, Array]:
    """Ask another model of this server and wait for its answer (BLS); inputs that are None are left out.

    Args:
        decoupled: whether that model is decoupled; the outputs of its last response count.

    Returns: the outputs by name, copied; STRING outputs as object arrays of bytes.
    Raises: the VoiceCloneError that the model answered; Unsupported if no such model is loaded; Overloaded if the
        server stops.
    """
    if not decoupled:
        return _outputs(model, _request(model, inputs).exec())
    found: dict[str, Array] = {}
    for outputs in responses(model, inputs):
        found = outputs or found
    return found


def responses(
    model: str, inputs: Mapping[str, Value | None], parameters: Mapping[str, str | int | bool | None] | None = None
) -> Generator[dict[str, Array], None, None]:
    """As `call` for a decoupled model: the outputs of its responses as they come. An empty response has none.

    Whoever leaves early waits for the last one all the same. The responses stay alive for a while.

    A thread of python_backend clears up behind an iterator. Where it holds the last reference to a response, it frees
    the arrays in it. Releases before 24.12 do that without the GIL, which corrupts the heap (fault: freed-without-gil).
    So this process keeps a reference until that thread is done.

    An iterator is always read to its end (fault: half-read-iterator): newer releases hang after a few that are not.

    Args:
        parameters: of the request; those that are None are left out.
    """
    answers = _request(model, inputs, parameters).exec(decoupled=True)
    whole: list[Any] = []
    size, ended = 0, False
    try:
        for answer in answers:
            whole.append(answer)
            outputs = _outputs(model, answer)
            size += sum(map(size_of, outputs.values()))
            yield outputs
        ended = True
    finally:
        if not ended:  # at its end an iterator would begin again
            whole += answers
        _keep(size, answers, whole)


def cancel_stream(talker: str, stream_id: str) -> None:
    """Ask a talker to stop a stream that no caller hears any more. Never raises."""
    try:
        call(talker, {"cancel": stream_id}, decoupled=True)
    except VoiceCloneError as error:
        log.info("%s was not asked to stop a stream: %s", talker, error)
    except Exception:
        log.exception("%s could not be asked to stop a stream", talker)


def _request(
    model: str,
    inputs: Mapping[str, Value | None],
    parameters: Mapping[str, str | int | bool | None] | None = None,
) -> Any:
    if _stopping.is_set():
        raise Overloaded(_SHUTS_DOWN)
    tensors = [pb_utils.Tensor(name, as_array(value)) for name, value in inputs.items() if value is not None]
    given = {n: value for n, value in {**passed_on.get(), **(parameters or {})}.items() if value is not None}
    more = {"parameters": given} if given else {}
    return pb_utils.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=[], **more)


def _outputs(model: str, answer: Any) -> dict[str, Array]:
    if answer.has_error():
        raise _error_of(model, answer.error().message())
    return {tensor.name(): tensor.as_numpy().copy() for tensor in answer.output_tensors()}


def _error_of(model: str, message: str) -> VoiceCloneError:
    error = from_message(message)
    if not isinstance(error, Internal):
        return error
    if _stops(message):
        return Overloaded(_SHUTS_DOWN)
    if _NOT_READY.search(message):
        return Unsupported(f"this server has no model {model}")
    log.error("the call of %s failed: %s", model, message)
    return error


def _keep(size: int, answers: Any, whole: list[Any]) -> None:
    now = time.monotonic()
    with _answered_lock:
        _answered.append((now, size, answers, whole))
        kept = sum(size for _, size, _, _ in _answered)
        while _answered[0][0] < now - (HURRIED if kept > ROOM else CLEARED_UP):
            kept -= _answered.popleft()[1]


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
