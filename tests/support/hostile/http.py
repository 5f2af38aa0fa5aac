"""Malformed and hostile HTTP requests, byte by byte over a socket.

Requests that crash Triton 2.51 itself are left out: see `test_hostile.py`.
"""

from __future__ import annotations

import base64
import json
import random
import socket
from collections.abc import Callable
from typing import Any

from tests.support.hostile.audio import broken_audio
from tests.support.hostile.inputs import FLOATS, GOOD_REQUESTS, INTEGERS, TEXTS, World

TIMEOUT = 60.0  # seconds until a request without an answer counts as hung
MODELS = tuple(GOOD_REQUESTS)
VALUES: tuple[Any, ...] = (*TEXTS, *INTEGERS, *FLOATS, 2**70, None, True, [], [[]], {}, [1, "a"], {"a": {"b": []}})
PATHS = (
    *(
        "/",
        "/v2",
        "/v2/models",
        "/v2/models/nope",
        "/v2/models/../../etc/passwd/infer",
        "/v2/models/%2e%2e/infer",
        "//",
    ),
    *("/v2/models/speaker_cache/versions/../../x", "/v2/models/speaker_cache/versions/9/infer", "/v2/" + "a/" * 2000),
    *("/v2/repository/models/speaker_cache/unload", "/v2/repository/models/..%2f/load", "/v2/models/\xff/ready"),
    *(
        "/v2/models/qwen3_tts/stats?a=%00",
        "/v2/models/qwen3_tts/config/x",
        "*",
        "http://[::1/",
        "/v2/health/ready/../../",
    ),
)


def document(rng: random.Random, world: World) -> bytes:
    """A body of `infer`: JSON that is almost right."""
    inputs: list[Any] = []
    for tensor in GOOD_REQUESTS[rng.choice(MODELS)](rng, world)[: rng.choice([1, 2, 9])]:
        inputs.append({"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "data": ["x"]})
        if rng.random() < 0.5:
            inputs[-1][rng.choice(["name", "datatype", "shape", "data", "parameters"])] = rng.choice(VALUES)
    made: dict[str, Any] = {"inputs": inputs}
    if rng.random() < 0.4:
        made[rng.choice(["id", "inputs", "outputs", "parameters", "unknown"])] = rng.choice(VALUES)
    text = json.dumps(rng.choice([made, made, made, inputs, rng.choice(VALUES)]))
    return rng.choice([text, text, text, text[: rng.randrange(len(text))], text + "}", "", "[" * 500]).encode()


def fields(rng: random.Random, world: World) -> bytes:
    """A body of `generate`: inputs by name, one or two with a value of any kind."""
    audio = "data:audio/wav;base64," + base64.b64encode(broken_audio(rng)).decode()
    made: dict[str, Any] = rng.choice(
        [
            {"text": "Hello.", "voice": "Harbour", "max_frames": 2},
            {"text": "Hello.", "speaker_embedding": [0.5] * 64, "max_frames": 20},
            {"text": "Hello.", "reference_audio": audio, "max_frames": 2},
            {"operation": rng.choice(["get", "list", "resolve", "stats"]), "name": "Mallory"},
            {"operation": "upload", "name": "Eve", "audio": audio},
        ]
    )
    for name in rng.sample([*made, "options", "seed", "deadline_ms", "language", "unknown"], rng.choice([0, 1, 2])):
        made[name] = rng.choice(VALUES)
    text = json.dumps(made)
    return rng.choice([text, text, text, text[: rng.randrange(len(text))]]).encode()


def post(path: str, body: bytes, *headers: str, length: int | str | None = None) -> bytes:
    """A request with these headers, whether they are true or not."""
    size = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {size}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def infer(rng: random.Random, world: World) -> bytes:
    """`infer` with JSON that is almost right."""
    return post(f"/v2/models/{rng.choice(MODELS)}/infer", document(rng, world))


def generate(rng: random.Random, world: World) -> bytes:
    """`generate` or `generate_stream` with values of any kind."""
    verb = rng.choice(["generate", "generate_stream"])
    body = fields(rng, world)
    model = "speaker_cache" if b'"operation"' in body else "qwen3_tts"
    return post(f"/v2/models/{rng.choice([model, model, rng.choice(MODELS)])}/{verb}", body)


def binary(rng: random.Random, world: World) -> bytes:
    """The binary extension with sizes that lie."""
    model = rng.choice(MODELS)
    tensors = GOOD_REQUESTS[model](rng, world)
    inputs = []
    for tensor in tensors:
        size = rng.choice([len(tensor.raw), len(tensor.raw), 0, 1, -1, 2**31, 2**63 - 1, "many", None])
        parameters = {"binary_data_size": size}
        inputs.append(
            {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "parameters": parameters}
        )
    head = json.dumps({"inputs": inputs}).encode()
    body = head + b"".join(tensor.raw for tensor in tensors)
    said = rng.choice([len(head), len(head), len(head) - 1, 0, -1, len(body) + 1, 2**31, 2**64, "x"])
    return post(f"/v2/models/{model}/infer", body, f"Inference-Header-Content-Length: {said}")


def strange(rng: random.Random, world: World) -> bytes:
    """Verbs, paths and headers that no client sends."""
    verb = rng.choice(["GET", "PUT", "DELETE", "TRACE", "OPTIONS", "get", "\0", "G" * 5000])
    header = rng.choice(
        ["X: y", "X: " + "y" * 50_000, "no colon", ": empty", "Content-Length: -5", "Expect: 100-continue"]
    )
    path = rng.choice([*PATHS, *(f"/v2/models/{model}/infer" for model in MODELS)])
    return f"{verb} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n\r\n".encode("latin-1")


def garbage(rng: random.Random, world: World) -> bytes:
    """No HTTP, or a body that never comes whole."""
    body = document(rng, world)
    wrong: list[int | str] = ["-1", "x", "1e3", 2**63, 0]
    return rng.choice(
        [
            rng.randbytes(300),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET",
            b"\r\n" * 1000,
            post("/v2/models/qwen3_tts/infer", body, length=len(body) + 1000),
            post("/v2/models/qwen3_tts/generate_stream", body, length=rng.choice(wrong)),
        ]
    )


KINDS: tuple[Callable[[random.Random, World], bytes], ...] = (infer, generate, binary, strange, garbage)


def hostile_http(port: int, rng: random.Random, world: World) -> str:
    """Send one request and read the answer, or hang up; what the server said, headers included.

    Raises:
        TimeoutError: a request that has come whole is not answered.
    """
    make = rng.choice(KINDS)
    data = make(rng, world)
    waits = make in (infer, generate, binary) and rng.random() < 0.9
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
            connection.sendall(data if waits else data[: rng.choice([len(data), len(data), len(data) // 2])])
            if not waits:
                connection.settimeout(rng.choice([0.0, 0.05, 0.3]))
            return _read(connection)
    except TimeoutError:
        if waits:
            raise
        return ""
    except OSError:  # the server closed the connection on it
        return ""


def _read(connection: socket.socket) -> str:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")
