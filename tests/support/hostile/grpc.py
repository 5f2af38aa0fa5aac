"""Malformed and hostile gRPC requests: a good request of some model, then a few things made wrong.

Requests that crash Triton 2.51 itself are left out: see `test_hostile.py`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.support.hostile.audio import broken_audio
from tests.support.hostile.inputs import (
    FLOATS,
    GOOD_REQUESTS,
    INTEGERS,
    NUMPY,
    TEXTS,
    Tensor,
    World,
    array,
    packed,
    string,
)

TIMEOUT = 60.0  # seconds until a request without an answer counts as hung
RAW = (b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\x80" * 300, bytes(1000))  # no UTF-8, or no text
DTYPES = (
    "BYTES",
    "FP32",
    "FP64",
    "FP16",
    "BF16",
    "INT8",
    "INT32",
    "INT64",
    "UINT64",
    "BOOL",
    "",
    "NOPE",
    "TYPE_STRING",
)


def _values(tensor: Tensor) -> NDArray[Any]:
    """The numbers of a tensor, as far as its bytes go."""
    dtype = np.dtype(NUMPY[tensor.datatype])
    return np.frombuffer(tensor.raw[: len(tensor.raw) // dtype.itemsize * dtype.itemsize], dtype).copy()


def _bad_value(rng: random.Random, tensor: Tensor) -> None:
    """Another value of the right type and shape."""
    if tensor.datatype == "BYTES":
        value = rng.choice([rng.choice(RAW), rng.choice(TEXTS).encode(), broken_audio(rng), rng.randbytes(200)])
        tensor.raw = packed([value])
    elif tensor.datatype in NUMPY:
        dtype = NUMPY[tensor.datatype]
        values = _values(tensor)
        if values.size:
            hostile = rng.choice(FLOATS if dtype == np.float32 else (0, 1) if dtype == np.bool_ else INTEGERS)
            values[rng.randrange(values.size)] = np.array(hostile).astype(dtype)
        tensor.raw = values.tobytes()


def _bad_shape(rng: random.Random, tensor: Tensor) -> None:
    """A shape that its bytes may or may not fit."""
    shapes: list[list[int]] = [
        [],
        [0],
        [-1],
        [2],
        [1, 1],
        [0, 16],
        [16, 0],
        [10**6],
        [2**31],
        [2**60, 2],
        [-(2**63)],
        [1] * 50,
    ]
    tensor.shape = rng.choice(shapes)


def _resized(rng: random.Random, tensor: Tensor) -> None:
    """A tensor of another size, with the bytes for it."""
    if tensor.datatype == "BYTES":
        count = rng.choice([0, 2, 100])
        tensor.shape, tensor.raw = [count], packed([rng.choice(TEXTS).encode() for _ in range(count)])
    elif tensor.datatype in NUMPY:
        shape = rng.choice([[0], [2], [1, 1], [3, 16], [0, 0], [500], [1, 5], [70000], [4000, 16]])
        values = _values(tensor)
        values = np.resize(values, shape) if values.size else np.zeros(shape)
        tensor.shape, tensor.raw = shape, values.astype(NUMPY[tensor.datatype]).tobytes()


def _bad_bytes(rng: random.Random, tensor: Tensor) -> None:
    """Bytes that do not fit the shape."""
    lie = struct.pack("<I", rng.choice([0, 1, 2**31, 2**32 - 1])) + b"abc"
    tensor.raw = rng.choice([b"", tensor.raw[:-1], tensor.raw[:3], tensor.raw + b"\0", rng.randbytes(37), lie])


def _spoil_inputs(rng: random.Random, inputs: list[Tensor]) -> None:
    """One thing made wrong in the inputs."""
    kind = rng.randrange(9)
    tensor = rng.choice(inputs) if inputs else string("text", "Hello.")
    if kind == 0 and inputs:
        inputs.remove(tensor)
    elif kind == 1:
        inputs.append(Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.raw))
    elif kind == 2:
        inputs.append(string(rng.choice(["", "unknown", "text ", *TEXTS]), "x"))
    elif kind == 3:
        tensor.datatype = rng.choice(DTYPES)
    elif kind == 4:
        _bad_shape(rng, tensor)
    elif kind == 5:
        _resized(rng, tensor)
    elif kind == 6:
        _bad_bytes(rng, tensor)
    else:
        _bad_value(rng, tensor)


def _spoil_request(rng: random.Random, request: Any) -> None:
    """One thing made wrong around the inputs."""
    kind = rng.randrange(9)
    if kind == 0:
        request.model_name = rng.choice(["", "nope", "../speaker_cache", "qwen3_tts/1", "\n", "x" * 10_000])
    elif kind == 1:
        request.model_version = rng.choice(["2", "-1", "0", "one", "../1", "9" * 30])
    elif kind == 2:
        request.id = rng.choice(["", "x" * 100_000, "\0", "a\nb", "/etc/passwd"])
    elif kind == 3:
        for _ in range(rng.choice([1, 2])):
            request.outputs.add(name=rng.choice(["audio", "nope", "", "x" * 10_000, "result", "info"]))
    elif kind == 4 and request.raw_input_contents:
        del request.raw_input_contents[-1]
    elif kind == 5:
        request.raw_input_contents.append(rng.randbytes(8))
    elif kind == 6 and request.inputs:
        request.inputs[0].contents.bytes_contents.append(b"both")
    elif kind == 7 and request.inputs and request.raw_input_contents:
        region = request.inputs[0].parameters
        region["shared_memory_region"].string_param = rng.choice(["", "nope", "../x"])
        region["shared_memory_byte_size"].int64_param = rng.choice([0, 8, 2**62])
        del request.raw_input_contents[0]
    else:
        _add_parameters(rng, request)


def _add_parameters(rng: random.Random, request: Any) -> None:
    name = rng.choice(
        [*["deadline_ms"] * 3, *["owner"] * 2, "unknown", "", "priority", "timeout", "binary_data", "x-voice-token"]
    )
    parameter = request.parameters[name]
    kind = rng.randrange(5)
    if kind == 0:
        parameter.bool_param = rng.random() < 0.5
    elif kind == 1:
        parameter.int64_param = rng.choice([-(2**63), -1, 0, 1, 50, 2**31, 2**63 - 1])
    elif kind == 2:
        parameter.string_param = rng.choice(TEXTS)
    elif kind == 3:
        parameter.double_param = rng.choice([*FLOATS, 1e-300, 1e300, 75.5])
    else:
        parameter.uint64_param = rng.choice([0, 1, 2**64 - 1])


def hostile_request(rng: random.Random, world: World) -> Any:
    """A ModelInferRequest with one to three things wrong, now and then with none."""
    model = rng.choice(list(GOOD_REQUESTS))
    inputs = GOOD_REQUESTS[model](rng, world)
    around = 0
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        if rng.random() < 0.75:
            _spoil_inputs(rng, inputs)
        else:
            around += 1
    request = _request(model, inputs)
    for _ in range(around):
        _spoil_request(rng, request)
    return request


def _request(model: str, inputs: Sequence[Tensor]) -> Any:
    request = pb.ModelInferRequest(model_name=model)
    for tensor in inputs:
        request.inputs.add(name=_text(tensor.name), datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.raw)
    return request


def _text(name: str) -> str:
    return name.encode("utf-8", "replace").decode()


class GrpcAttacker:
    """Sends such requests over one channel; for any number of threads."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.insecure_channel(url, [("grpc.max_receive_message_length", -1)])
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __call__(self, rng: random.Random, world: World) -> str:
        """Send one and read all that comes back, or hang up; the errors as text."""
        kind = rng.random()
        if kind < 0.15:
            return self._leave(rng, world)
        request = hostile_request(rng, world)
        return self._once(request) if kind < 0.4 else self._stream(request)

    def _once(self, request: Any) -> str:
        try:
            self._stub.ModelInfer(request, timeout=TIMEOUT)
            return ""
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"

    def _stream(self, request: Any) -> str:
        """Read to the end."""
        said = []
        try:
            for response in self._stub.ModelStreamInfer(iter([request]), timeout=TIMEOUT):
                said.append(response.error_message)
        except grpc.RpcError as error:
            said.append(f"{error.code().name}: {error.details()}")
        return "\n".join(filter(None, said))

    def _leave(self, rng: random.Random, world: World) -> str:
        """Ask for a long speech and hang up after some responses."""
        inputs = [string("text", "A long story. " * 20), array("speaker_embedding", np.ones(64), "FP32")]
        call = self._stub.ModelStreamInfer(iter([_request("qwen3_tts", inputs)]), timeout=TIMEOUT)
        wanted = rng.choice([0, 1, 2, 3])
        said = []
        try:
            for _, response in zip(range(wanted), call, strict=False):  # a refusal is the only response
                said.append(response.error_message)
        except grpc.RpcError as error:
            said.append(f"{error.code().name}: {error.details()}")
        call.cancel()
        return "\n".join(filter(None, said))

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
