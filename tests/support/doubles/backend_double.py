"""A double of Triton's `triton_python_backend_utils`, which exists only inside a model's process.

As in the true one, a text that is no UTF-8 cannot enter, a sender that had the final flag refuses everything, and a
model that is not decoupled answers once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

FINAL = 1
MODULES = ("tensors", "telemetry", "responder", "calls", "request", "model")
STAGES = ("aligner", "encoder", "talker")


class TritonError:
    INTERNAL, INVALID_ARG, UNAVAILABLE, NOT_FOUND, CANCELLED, UNSUPPORTED, ALREADY_EXISTS = range(7)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        message.encode()
        self.text, self.code = message, code


class Sender:
    """Notes what is sent; `failures` are raised first, one at each send, before or after the final flag counts."""

    def __init__(self, *failures: tuple[bool, Exception]) -> None:
        self.sent: list[tuple[Any, int]] = []
        self._failures = list(failures)
        self._closed = False

    def send(self, response: Any = None, flags: int = 0) -> None:
        if self._closed:
            raise RuntimeError("Unable to send response. Response sender has been closed.")
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None and not failure[0]:
            raise failure[1]
        self._closed = flags == FINAL
        if failure is not None:
            raise failure[1]
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        assert not self._closed, "this crashes the true server"
        return False


def _log(line: str) -> None:
    line.encode()


def _backend() -> ModuleType:
    module = ModuleType("triton_python_backend_utils")
    vars(module).update(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        TritonError=TritonError,
        Tensor=lambda name, array: (name, np.array(array)),
        InferenceResponse=lambda output_tensors=(), error=None: SimpleNamespace(tensors=output_tensors, error=error),
        Logger=SimpleNamespace(log_error=_log, log_warn=_log, log_info=_log),
    )
    return module


@contextmanager
def backend_double(*names: str) -> Iterator[list[Any]]:
    """The modules of these names of `voice_clone.triton`, imported again on the double; forgotten afterwards."""
    paths = [f"voice_clone.triton.{name}" for name in (*MODULES, *(f"stages.{stage}" for stage in STAGES))]
    kept = {name: sys.modules.pop(name, None) for name in (*paths, "triton_python_backend_utils")}
    sys.modules["triton_python_backend_utils"] = _backend()
    try:
        yield [importlib.import_module(f"voice_clone.triton.{name}") for name in names]
    finally:
        for name, module in kept.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
