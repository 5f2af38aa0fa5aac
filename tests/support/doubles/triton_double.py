"""A gRPC server with Triton's protocol that plays a script: a double of the protocol, for the client's logic alone.

What the true server does is tested in tests/server.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc
from voice_clone_words.units import units_of

PART = 4 << 20  # bytes of a bundle that are answered at once
RATE = 24000
FAMILY = "qwen3_tts"
STATS = ("speaker_cache", {"operation": b"stats"})
"""The call with which a client asks for the families."""
END = {"finish_reason": "stop"}
Play = Callable[[Any], Iterator[Any]]


class Failure(Exception):
    """Raised by a script: the call ends with this status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Spoken(NamedTuple):
    """What the request of a speech carries beside its inputs; `owner` and `mark` are "" where it has none."""

    owner: str
    mark: str
    metadata: dict[str, Any]


def asked_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an operation."""
    asked: dict[str, Any] = json.loads(inputs.get("options", "{}"))
    return asked


class Server(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers a speech with `play(context)`, a unary call with `answer(inputs)`; records all requests.

    It adds `model_types` and what they can do to each answer of the operation `stats`, and answers a part of what
    `answer` exports.
    """

    def __init__(self) -> None:
        self.url = ""
        self.reset()

    def reset(self) -> None:
        """Be as a new one: no requests, the usual answers."""
        self.model_types = [FAMILY]
        self.instructions: dict[str, str] = {}
        self.voiceless: list[str] = []
        self.options: dict[str, dict[str, str]] = {}
        self.languages: dict[str, list[str]] = {}
        self.max_characters: dict[str, int] = {}
        self.synthesizers: dict[str, str] = {}
        self.play: Play = lambda context: iter(speech(3))
        self.answer: Callable[[dict[str, Any]], dict[str, bytes]] = lambda inputs: {"result": b"{}"}
        self.align: Callable[[dict[str, Any]], Any] = without_aligner  # the result of `aligner` for inputs
        self.keeps_dictionaries = False  # whether `answer` lists them; a gateway asks for them by itself
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.metadata: list[dict[str, Any]] = []
        self.callers: list[tuple[str, str]] = []  # of each call: the parameters `caller` and `urgency`, or ""
        self.owners: list[str] = []  # of each call: the parameter `owner`, or ""
        self.spoken: list[Spoken] = []  # of each speech, without the calls that append text to it
        self.ready = True
        self.left = threading.Semaphore(0)  # released by each stream that the client gave up

    def ModelStreamInfer(self, request_iterator: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        ended = threading.Event()
        context.add_callback(lambda: None if ended.is_set() else self.left.release())
        inputs = context.inputs = self._remember(next(request_iterator), context)  # for scripts
        if "append" in inputs:
            ended.set()
            info = {"accepted": int(inputs["index"][0]), "state": "closed" if inputs["last"][0] else "open"}
            answer = response({"info": json.dumps(info).encode()})
            yield service_pb2.ModelStreamInferResponse(infer_response=answer)
            return
        try:
            yield from self.play(context)
        except Failure as failure:
            context.abort(failure.code, failure.details)
        finally:
            if context.is_active():
                ended.set()

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:
        if not self.keeps_dictionaries and is_list_of_dictionaries(decoded(request)):
            return response({"result": b'{"speakers": [], "count": 0}'})
        aligns = request.model_name == "aligner"
        inputs = decoded(request) if aligns else self._remember(request, context)
        try:
            outputs = {"result": json.dumps(self.align(inputs)).encode()} if aligns else self.answer(inputs)
        except Failure as failure:
            context.abort(failure.code, failure.details)
        if inputs.get("operation") == b"stats" and "result" in outputs:
            result = {
                **json.loads(outputs["result"]),
                "model_types": self.model_types,
                "instructions": self.instructions,
                "voiceless": self.voiceless,
                "options": self.options,
                "languages": self.languages,
                "max_characters": self.max_characters,
                "synthesizers": self.synthesizers if asked_of(inputs).get("synthesizers") else {},
            }
            outputs = {**outputs, "result": json.dumps(result).encode()}
        if inputs.get("operation") == b"export" and "id" in (asked := asked_of(inputs)):
            bundle, offset = outputs.get("artifacts") or b"bundle", asked.get("offset", 0)
            result = {"speakers": [], "size": len(bundle), "digest": hashlib.sha256(bundle).hexdigest()}
            outputs = {"result": json.dumps(result).encode(), "artifacts": bundle[offset : offset + PART]}
        return response(outputs)

    def ModelReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name in self.model_types)

    def ServerReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        return service_pb2.ServerReadyResponse(ready=self.ready)

    @property
    def stats_calls(self) -> int:
        """How often the families were asked for."""
        return self.calls.count(STATS)

    @property
    def asked(self) -> list[tuple[str, dict[str, Any]]]:
        """All calls but those for the families, which a gateway makes now and then by itself."""
        return [call for call in self.calls if call != STATS]

    @property
    def speeches(self) -> list[tuple[str, dict[str, Any]]]:
        """Model and inputs of each speech, and of each piece of text that is appended to one."""
        return [call for call in self.calls if call[0] != "speaker_cache"]

    def _remember(self, request: Any, context: grpc.ServicerContext) -> dict[str, Any]:
        inputs = decoded(request)
        metadata = dict(context.invocation_metadata())
        owner, mark, caller, urgency = (
            request.parameters[name].string_param if name in request.parameters else ""
            for name in ("owner", "mark", "caller", "urgency")
        )
        self.callers.append((caller, urgency))
        self.metadata.append(metadata)
        self.owners.append(owner)
        if request.model_name != "speaker_cache" and "append" not in inputs:
            self.spoken.append(Spoken(owner, mark, metadata))
        self.calls.append((request.model_name, inputs))
        return inputs


def without_aligner(inputs: dict[str, Any]) -> Any:
    """As a server that has none."""
    raise Failure(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'aligner' is not found")


class AlignerDouble:
    """Says that each word lasts so many samples, one after another. It tells them when they are over."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._units: dict[bytes, int] = {}
        self._heard: dict[bytes, int] = {}
        self._told: dict[bytes, int] = {}

    def __call__(self, inputs: dict[str, Any]) -> Any:
        id, step = inputs["alignment"], self._samples
        if "text" in inputs:
            self._units[id] = len(units_of(inputs["text"].decode()))
        self._heard[id] = self._heard.get(id, 0) + len(inputs["audio"])
        final = bool(inputs["final"][0])
        first = 0 if final else self._told.get(id, 0)
        last = self._told[id] = self._units[id] if final else min(self._units[id], self._heard[id] // step)
        words = [{"start": at * step, "end": (at + 1) * step, "estimated": False} for at in range(first, last)]
        return {"words": words, "reason": None}


def is_list_of_dictionaries(inputs: dict[str, Any]) -> bool:
    """Whether a call asks for the dictionaries of pronunciations that are kept."""
    return inputs.get("operation") == b"list" and b'"dictionary"' in inputs.get("options", b"")


def decoded(request: Any) -> dict[str, Any]:
    """The inputs of a request as Triton would see them; checks shapes against bytes."""
    kinds = {"FP32": "<f4", "INT32": "<i4", "UINT64": "<u8", "BOOL": "?"}
    inputs = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        (size,) = tensor.shape
        if tensor.datatype == "BYTES":
            (length,) = struct.unpack_from("<I", raw)
            assert size == 1 and len(raw) == 4 + length
            inputs[tensor.name] = raw[4:]
        else:
            array = np.frombuffer(raw, kinds[tensor.datatype])
            assert array.shape == (size,)
            inputs[tensor.name] = array
    return inputs


def response(outputs: dict[str, Any]) -> Any:
    """A ModelInferResponse; bytes become strings, arrays keep their type."""
    message = service_pb2.ModelInferResponse(model_name="any", model_version="1")
    names = {"f": "FP32", "i": "INT32", "b": "BOOL"}
    for name, value in outputs.items():
        if isinstance(value, bytes):
            datatype, shape, raw = "BYTES", [1], struct.pack("<I", len(value)) + value
        else:
            datatype, shape, raw = names[value.dtype.kind], value.shape, value.tobytes()
        message.outputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_output_contents.append(raw)
    return message


def samples_of(index: int, count: int) -> NDArray[np.float32]:
    """What the double speaks in a chunk: a ramp that names its chunk."""
    return np.linspace(index / 100, (index + 1) / 100, count, dtype=np.float32)


def chunk(
    index: int, final: bool = False, count: int = 1920, info: dict[str, Any] | None = None, rate: int = RATE
) -> Any:
    """A stream response with one chunk."""
    outputs = {
        "audio": samples_of(index, count),
        "sample_rate": np.array([rate], np.int32),
        "chunk_index": np.array([index], np.int32),
        "final": np.array([final]),
        "info": json.dumps({**END, **(info or {})} if final else info).encode() if info or final else b"",
    }
    return service_pb2.ModelStreamInferResponse(infer_response=response(outputs))


def speech(chunks: int, last_count: int = 1920, rate: int = RATE) -> list[Any]:
    """A whole speech; info on the first and the last chunk, as the server does it."""
    messages = [chunk(0, info={"cache": "miss"}, rate=rate)]
    messages += [chunk(index, rate=rate) for index in range(1, chunks - 1)]
    info = {"cache": "miss", "frames": chunks}
    return [*messages, chunk(chunks - 1, final=True, count=last_count, info=info, rate=rate)]


def endless(pause: float = 0.01, **more: Any) -> Play:
    """A speech that goes on until its client has left, with a pause of so many seconds behind each chunk.

    Further arguments are those of `chunk`.
    """

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        for index in itertools.count():
            if not context.is_active():
                return
            yield chunk(index, **more)
            time.sleep(pause)

    return play


def empty_final() -> Any:
    """The response that only says that a request ended."""
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.model_name = "any"
    message.infer_response.parameters["triton_final_response"].bool_param = True
    return message


@contextlib.contextmanager
def listening(address: str = "127.0.0.1:0") -> Iterator[Server]:
    """A double that listens, by default on a free port."""
    servicer = Server()
    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.max_receive_message_length", -1)])  # as Triton
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    servicer.url = f"{address.rpartition(':')[0]}:{server.add_insecure_port(address)}"
    server.start()
    yield servicer
    server.stop(grace=0).wait()
