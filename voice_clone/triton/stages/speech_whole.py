"""The model `speech_whole` answers a whole speech of any family at once, for callers that cannot stream.

in    model      STRING [1]  optional: the family that speaks; without it the server's default
      the inputs of the families' public models, but for `text_stream`
out   audio FP32 [n]  mono; sample_rate INT32 [1]  Hz; info STRING [1]  JSON, as a stream's first and last chunk have it

The request parameters `owner`, `deadline_ms` and `mark` go to the family. The samples are those of the stream.

Tritonserver has 32 threads for this model. Each speech holds one until its first chunk, and the threads also send
answers. So `max_whole_speeches` stays below 32, unless the Python backend has another `thread-pool-size`.
"""

from __future__ import annotations

import json
import math
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from voice_clone.errors import InvalidArgument, Overloaded, Unsupported, from_message
from voice_clone.server_settings import WholeSpeechSettings
from voice_clone.settings import Settings
from voice_clone.triton.calls import call, cancel_stream, responses
from voice_clone.triton.model import Model
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.tensors import Array, Value
from voice_clone.turns import may_have_more

LOOK_SECONDS = 0.25  # seconds between two looks whether clients have left
MOST = 2.0**53  # of a float parameter
REFUSING = 8  # threads beside those of the speeches


class WholeSpeechModel(Model):
    """Call the public model of a family, and join its chunks. Each speech has a thread, which only waits."""

    def load(self, given: Settings) -> None:
        settings = WholeSpeechSettings.of(given)
        self._most_seconds = settings.max_whole_seconds
        most = settings.max_whole_speeches
        self._places = Places(most, f"{most} whole speeches are made already (max_whole_speeches); try again later")
        self.threads = most + REFUSING
        self._families = Families()
        self._clients = Clients()

    def handle(self, request: Request, responder: Responder) -> Mapping[str, Value]:
        with self._places.taken(self.caller(request).name):
            return self._speak(request, responder)

    def _speak(self, request: Request, responder: Responder) -> Mapping[str, Value]:
        family = self._families.choose(request.text("model"))
        stream_id = uuid.uuid4().hex
        parameters = {name: carried(request.parameter(name)) for name in ("owner", "deadline_ms", "mark")}
        parameters |= {"stream_id": stream_id, "errors_in_info": True}
        inputs: dict[str, Value | None] = {name: array for name, array in request.arrays().items() if name != "model"}
        whole = WholeSpeech(family, self._most_seconds)
        with self._clients.watched(responder.cancelled, family, stream_id):
            for outputs in responses(family, inputs, parameters):
                if not whole.takes(outputs):
                    cancel_stream(f"{family}_talker", stream_id)  # the rest of its responses is still read
        return whole.outputs()

    def close(self) -> None:
        self._clients.close()


class WholeSpeech:
    """The chunks of a speech that one answer will have."""

    def __init__(self, family: str, most_seconds: float) -> None:
        self._family = family
        self._most_seconds = most_seconds
        self._audio: list[Array] = []
        self._samples = self._rate = 0
        self._info: dict[str, Any] = {}
        self._final = False
        self.too_long = False

    def takes(self, outputs: Mapping[str, Array]) -> bool:
        """Add the outputs of a response. Returns false if the speech has become too long, and the rest is not wanted.

        Raises:
            VoiceCloneError: the speech ended with it.
        """
        if self.too_long or not outputs:
            return True  # what still comes is not kept
        self._audio.append(outputs["audio"])
        self._samples += len(outputs["audio"])
        self._rate = int(outputs["sample_rate"][0])
        self._final = bool(outputs["final"][0])
        self._info |= json.loads(outputs["info"][0] or b"{}")
        if "error" in self._info:
            raise from_message(str(self._info["error"]))
        if self._samples > self._most_seconds * self._rate:
            self.too_long = True
            self._audio.clear()
        return not self.too_long

    def outputs(self) -> dict[str, Value]:
        """The answer.

        Raises:
            InvalidArgument: it is too long.
            Overloaded: the server stopped before its end.
        """
        if self.too_long:
            raise InvalidArgument(
                f"the speech has more than {self._most_seconds:g} s, the most in one answer (max_whole_seconds): "
                f"stream it from the model {self._family}, speak less of the text at once, or give a smaller "
                "`max_frames`"
            )
        if not self._final:
            raise Overloaded("the speech broke off, for the server stops; ask another one, or later")
        return {"audio": np.concatenate(self._audio), "sample_rate": self._rate, "info": json.dumps(self._info)}


class Places:
    """How many speeches are made at once, with a share for each caller."""

    def __init__(self, most: int, full: str) -> None:
        self._most, self._full = most, full
        self._callers: list[str] = []  # of the speeches that are made
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, caller: str) -> Iterator[None]:
        """Have a place during the `with` block.

        Raises:
            Overloaded: there is none.
        """
        with self._lock:
            if not may_have_more(self._callers, caller, self._most):
                raise Overloaded(self._full)
            self._callers.append(caller)
        try:
            yield
        finally:
            with self._lock:
                self._callers.remove(caller)


class Families:
    """The model families of the server."""

    def __init__(self) -> None:
        self._known: tuple[str, ...] = ()

    def choose(self, named: str | None) -> str:
        """The family of that name, or the default.

        Raises:
            InvalidArgument: there is no such family.
            Unsupported: the server has no family.
        """
        if not self._known or (named is not None and named not in self._known):  # it may have loaded since
            stats = json.loads(call("speaker_cache", {"operation": "stats"})["result"][0])
            self._known = tuple(stats["model_types"])
        if not self._known:
            raise Unsupported("this server has no model family")
        if named is not None and named not in self._known:
            raise InvalidArgument(f"`model` must be a family of this server: {', '.join(self._known)}")
        return named or self._known[0]


class Clients:
    """The clients of running speeches. If one leaves, its speech is cancelled.

    A call between models does not pass a cancellation on (fault: call-cancel). So the talker is asked to stop the
    stream, again and again until the speech has ended, because at first it may not have the stream yet. Over HTTP
    Triton 2.51 does not notice
    that a client has left.
    """

    def __init__(self) -> None:
        self._speeches: dict[str, tuple[Callable[[], bool], str]] = {}  # by stream
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clients", daemon=True)
        self._thread.start()

    @contextmanager
    def watched(self, left: Callable[[], bool], family: str, stream_id: str) -> Iterator[None]:
        """Look for the client of a speech during the `with` block; `left`: whether it wants no more of it."""
        with self._lock:
            self._speeches[stream_id] = left, family
        try:
            yield
        finally:
            with self._lock:
                del self._speeches[stream_id]

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            with self._lock:
                speeches = list(self._speeches.items())
            for stream_id, (left, family) in speeches:
                if left():
                    cancel_stream(f"{family}_talker", stream_id)


def carried(parameter: Any) -> Any:
    """Return a request parameter in a form that a call between models can carry: a float is rounded up, or 0 if it is
    not finite.
    """
    if not isinstance(parameter, float):
        return parameter
    return math.ceil(max(-MOST, min(parameter, MOST))) if math.isfinite(parameter) else 0
