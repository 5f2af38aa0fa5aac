"""Requests in, responses out, calls between models: nobody else touches tensors and requests of Triton.

A model.py subclasses `Model`, loads in `load`, and implements `handle`. What it gets from here:

- inputs are read and copied once, in `execute` (`Request`): the buffers belong to the server and go with the request;
- every request is answered exactly once to the end, whatever is raised (`Responder`): a response sender that is
  dropped without its FINAL flag hangs the client for ever and keeps the model from unloading;
- only errors of `voice_clone.errors` reach a caller, with their slug; anything else becomes `internal` with the
  request's id, and its traceback goes to the log alone;
- `call` asks another model (BLS) and raises the error that it answered.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from voice_clone.errors import Cancelled, Internal, InvalidArgument, Unsupported, VoiceCloneError, from_message
from voice_clone.json_text import parse_object
from voice_clone.memory import trim
from voice_clone.settings import Settings
from voice_clone.triton.lost_models import LostModels
from voice_clone.triton.shared_memory import SharedMemory
from voice_clone.triton.telemetry import Metric, log_to_triton
from voice_clone.triton.versions import check_backend, check_versions

Array = NDArray[Any]
Value = Array | str | bytes | int | float | bool  # what an output may be given as; scalars become shape [1]

log = logging.getLogger(__name__)

YIELD = 1e-6  # seconds; to sleep gives Python's lock away for 0.1 ms, or until a busy thread gives it back

WORTH_ASKING = 0.02  # seconds that a request waited; to ask whether its client has gone takes half a millisecond

_shared_memory = SharedMemory()

_DTYPES = {
    "TYPE_FP32": np.float32,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT64": np.uint64,
    "TYPE_BOOL": np.bool_,
    "TYPE_STRING": np.object_,
}


class Request:
    """The inputs and parameters of one inference request, copied out of the server's memory; None: not given.

    Args:
        request: Triton's.
        required: names of inputs. Triton 2.51 only counts them in a model that has optional ones too.

    Raises:
        InvalidArgument: one of them is missing.
    """

    def __init__(self, request: Any, required: Iterable[str]) -> None:
        self._inputs: dict[str, Array] = {t.name(): t.as_numpy().copy() for t in request.inputs()}
        for name in required:
            if name not in self._inputs:
                raise InvalidArgument(f"{name} is missing")
        # Some are forwarded headers, whose names keep the case in which they were sent.
        given: dict[str, Any] = json.loads(request.parameters() or "{}")
        self._parameters = {name.lower(): value for name, value in given.items()}

    def parameter(self, name: str) -> Any:
        """A request parameter: a bool, an int, a float or a text. `name` is in lower case."""
        return self._parameters.get(name)

    def array(self, name: str) -> Array | None:
        """The tensor as the server declared it."""
        return self._inputs.get(name)

    def raw(self, name: str) -> bytes | None:
        """A STRING tensor of one element as bytes."""
        values = self._one(name)
        if values is None:
            return None
        return values if isinstance(values, bytes) else str(values).encode()

    def text(self, name: str) -> str | None:
        """A STRING tensor of one element as text.

        Raises:
            InvalidArgument: the bytes are not UTF-8.
        """
        value = self.raw(name)
        try:
            return None if value is None else value.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidArgument(f"{name} must be UTF-8 text") from None

    def json_object(self, name: str) -> dict[str, Any]:
        """A STRING tensor of one element that holds a JSON object; empty where there is none.

        Raises:
            InvalidArgument: it holds something else.
        """
        return parse_object(name, self.text(name))

    def number(self, name: str) -> Any:
        """A tensor of one element as a Python bool, int or float."""
        value = self._one(name)
        return None if value is None else value.item()

    def _one(self, name: str) -> Any:
        values = self._inputs.get(name)
        if values is None:
            return None
        if values.size != 1:
            raise InvalidArgument(f"{name} must have exactly one element, not {values.size}")
        return values.reshape(-1)[0]


class Responder:
    """Sends the responses of one request and ends it exactly once. Thread-safe."""

    def __init__(self, sender: Any, request_id: str, dtypes: Mapping[str, Any]) -> None:
        self._sender = sender
        self._request_id = request_id
        self._dtypes = dtypes
        self._lock = threading.Lock()
        self._ended = False

    def cancelled(self) -> bool:
        """Whether the client has given this request up; no longer of interest once it has ended."""
        with self._lock:
            # Asking after the FINAL flag reads freed memory and takes the whole server down (seen on 2.51).
            return not self._ended and bool(self._sender.is_cancelled())

    def send(self, outputs: Mapping[str, Value], final: bool = False) -> None:
        """One response; with `final` the last one. Does nothing once the request has ended.

        Raises:
            Overloaded: there is no room for it; the request has not ended then.
        """
        arrays = {name: _as_array(value, self._dtypes[name]) for name, value in outputs.items()}
        tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
        self._send(pb_utils.InferenceResponse(output_tensors=tensors), final, sum(map(_size, arrays.values())))

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


class Model:
    """Base of every `TritonPythonModel`.

    Class attributes:
        threads: how many requests `handle` works on at once; 0 runs it in `execute` itself (for a model that only
            hands requests on). `load` may set it.
        single: whether the model keeps state that all requests must share, so that a second instance (a process
            of its own) would be wrong.
    """

    threads = 0
    single: ClassVar[bool] = False

    def initialize(self, args: Mapping[str, str]) -> None:
        """Called by Triton once at load."""
        server = os.getppid()  # should it end while this loads, another process becomes the parent
        config = json.loads(args["model_config"])
        log_to_triton(args["model_name"])
        self._required = [entry["name"] for entry in config["input"] if not entry.get("optional")]
        self._dtypes = {entry["name"]: _DTYPES[entry["data_type"]] for entry in config["output"]}
        self._pool: ThreadPoolExecutor | None = None
        try:
            if self.single and not args["model_instance_name"].endswith("_0_0"):
                raise InvalidArgument("this model keeps shared state: its instance_group must have count 1")
            check_backend(pb_utils)
            check_versions()
            self.load(Settings(config))
            gc.collect()
            gc.freeze()  # modules and weights stay: no collection looks at them again, nor does the interpreter's end
            trim()
            if self.threads:
                self._pool = ThreadPoolExecutor(self.threads, args["model_name"])
            self._lost_models = LostModels(server)
            return
        except VoiceCloneError as error:
            reason = str(error)
        except Exception:
            log.exception("loading failed")
            reason = "loading failed; the server's log says why"
        raise pb_utils.TritonModelException(f"{args['model_name']}: {reason}")

    def execute(self, requests: Sequence[Any]) -> None:
        """Called by Triton with each request; answers come through the response sender, now or later."""
        came = time.monotonic()
        for raw in requests:
            request_id = raw.request_id() or uuid.uuid4().hex
            responder = Responder(raw.get_response_sender(), request_id, self._dtypes)
            try:
                request = Request(raw, self._required)
                if self._pool is None:
                    self._run(request, responder, came)
                else:
                    self._pool.submit(self._run, request, responder, came)
            except BaseException as error:
                responder.fail(error)
        # Triton keeps Python's lock until the server has taken notice of the return, 0.2 ms or more. Whoever works on
        # the request now may begin before.
        time.sleep(YIELD)

    def finalize(self) -> None:
        """Called by Triton at unload, when no request is open any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._lost_models.close()
        self.close()
        # A metric that is destroyed later, when the interpreter ends, crashes the process (seen on 2.51).
        vars(self).clear()
        Metric.forget()

    def _run(self, request: Request, responder: Responder, came: float) -> None:
        try:
            # A model without a pool hands requests on, and has more to do about a cancelled one than to fail it.
            waited = self._pool is not None and time.monotonic() - came > WORTH_ASKING
            if waited and responder.cancelled():
                raise Cancelled("the client gave the request up")
            outputs = self.handle(request, responder)
            if outputs is not None:
                responder.send(outputs, final=True)
        except BaseException as error:
            responder.fail(error)

    def load(self, settings: Settings) -> None:
        """Make the model ready to serve."""
        raise AssertionError("a model implements load")

    def handle(self, request: Request, responder: Responder) -> Mapping[str, Value] | None:
        """Answer with the outputs, or return None and see to it that `responder` ends the request later."""
        raise AssertionError("a model implements handle")

    def close(self) -> None:
        """Release what `load` opened."""


def call(model: str, inputs: Mapping[str, Value | None], *, decoupled: bool = False) -> dict[str, Array]:
    """Ask another model of this server and wait for its answer (BLS); inputs that are None are left out.

    Args:
        decoupled: whether that model is decoupled; the outputs of its last response count.

    Returns: the outputs by name, copied; STRING outputs as object arrays of bytes.
    Raises: the VoiceCloneError that the model answered; Unsupported if no such model is loaded.
    """
    tensors = [pb_utils.Tensor(name, _as_array(value)) for name, value in inputs.items() if value is not None]
    request = pb_utils.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=[])
    answers = request.exec(decoupled=True) if decoupled else [request.exec()]
    outputs: dict[str, Array] = {}
    for answer in answers:
        if answer.has_error():
            message = answer.error().message()
            error = from_message(message)
            if isinstance(error, Internal) and not pb_utils.is_model_ready(model):
                raise Unsupported(f"this server has no model {model}")
            if isinstance(error, Internal):
                log.error("the call of %s failed: %s", model, message)
            raise error
        outputs = {tensor.name(): tensor.as_numpy().copy() for tensor in answer.output_tensors()} or outputs
    return outputs


def _as_array(value: Value, dtype: Any = None) -> Array:
    """A tensor of `value`; without `dtype`, Python numbers become INT32, FP32 or BOOL."""
    if isinstance(value, (str, bytes)):
        encoded = value.encode() if isinstance(value, str) else value
        return np.array([encoded], dtype=np.object_)
    if dtype is None:
        dtype = {int: np.int32, float: np.float32}.get(type(value))
    array = np.asarray(value, dtype=dtype)
    return np.ascontiguousarray(array.reshape(1) if array.ndim == 0 else array)


def _size(array: Array) -> int:
    """Bytes of a tensor, without the few that tell of it."""
    return sum(map(len, array.flat)) if array.dtype == np.object_ else array.nbytes


# Triton adds to a failed load where it was raised; that is no client's business.
Model.initialize.__code__ = Model.initialize.__code__.replace(co_filename="voice_clone")
