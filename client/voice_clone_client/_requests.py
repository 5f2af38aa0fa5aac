"""The calls as Triton messages; the sync and the async client send the same."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from tritonclient.grpc import service_pb2

from .errors import InvalidArgument
from .types import Knobs

Source = str | os.PathLike[str] | bytes
"""Audio: the path of a file, or the bytes of one."""

CACHE = "speaker_cache"

# Triton's type of every input but those that are strings.
_DTYPES = {
    "speaker_embedding": "FP32",
    "x_vector_only": "BOOL",
    "seed": "UINT64",
    "max_frames": "INT32",
    "temperature": "FP32",
    "top_k": "INT32",
    "top_p": "FP32",
    "repetition_penalty": "FP32",
    "do_sample": "BOOL",
    "subtalker_temperature": "FP32",
    "subtalker_top_k": "INT32",
    "subtalker_top_p": "FP32",
    "subtalker_do_sample": "BOOL",
    "non_streaming_mode": "BOOL",
}
_INTEGERS: dict[str, type[np.integer[Any]]] = {"INT32": np.int32, "UINT64": np.uint64}


def synthesis(
    model: str,
    text: str,
    voice: str | None,
    reference_audio: Source | None,
    reference_text: str | None,
    speaker_embedding: ArrayLike | None,
    x_vector_only: bool | None,
    knobs: Mapping[str, Any],
) -> Any:
    """The request of one speech. Which combinations make sense is for the server to say.

    Raises:
        TypeError: a knob is unknown.
        InvalidArgument: a value has no place in its tensor.
        OSError: the file of the reference audio cannot be read.
    """
    for name in knobs:
        if name not in Knobs.__annotations__:
            raise TypeError(f"speak() has no parameter {name!r}; its knobs are {', '.join(Knobs.__annotations__)}")
    return infer(
        model,
        {
            "text": text,
            "voice": voice,
            "reference_audio": _bytes(reference_audio),
            "reference_text": reference_text,
            "speaker_embedding": speaker_embedding,
            "x_vector_only": x_vector_only,
            **knobs,
        },
    )


def cache(
    operation: str,
    *,
    name: str | None = None,
    model_type: str | None = None,
    audio: Source | None = None,
    reference_text: str | None = None,
    consent: str | None = None,
    description: str | None = None,
    speaker_embedding: ArrayLike | None = None,
    **options: bool | float | str | None,
) -> Any:
    """The request of one `speaker_cache` operation; options that are None are not sent."""
    chosen = {key: value for key, value in options.items() if value is not None}
    return infer(
        CACHE,
        {
            "operation": operation,
            "name": name,
            "model_type": model_type,
            "audio": _bytes(audio),
            "reference_text": reference_text,
            "consent": consent,
            "description": description,
            "speaker_embedding": speaker_embedding,
            "options": json.dumps(chosen) if chosen else None,
        },
    )


def infer(model: str, inputs: Mapping[str, Any]) -> Any:
    """A ModelInferRequest with those of `inputs` that are not None, as raw little-endian tensors.

    Raises:
        InvalidArgument: a value has no place in its tensor.
    """
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, value in inputs.items():
        if value is None:
            continue
        dtype = _DTYPES.get(name, "BYTES")
        size, raw = _encode(name, dtype, value)
        request.inputs.add(name=name, datatype=dtype, shape=[size])
        request.raw_input_contents.append(raw)
    return request


def _encode(name: str, dtype: str, value: Any) -> tuple[int, bytes]:
    """Number of elements, and their bytes."""
    try:
        if name == "speaker_embedding":
            array = np.asarray(value, dtype="<f4")
            if array.ndim != 1:
                raise ValueError(f"it must have one dimension, it has {array.ndim}")
            return array.size, array.tobytes()
        if dtype == "BYTES":
            data = value if isinstance(value, bytes) else _utf8(value)
            return 1, struct.pack("<I", len(data)) + data  # Triton's string: length, then bytes
        if dtype == "BOOL":
            if not isinstance(value, bool | np.bool_):
                raise ValueError(f"it must be True or False, not {value!r}")
            return 1, struct.pack("<?", value)
        if dtype == "FP32":
            return 1, struct.pack("<f", value)
        return 1, _integer(_INTEGERS[dtype], value)
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise InvalidArgument(f"{name} cannot be sent: {error}") from None


def _utf8(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"it must be a string, not {type(value).__name__}")
    return value.encode()


def _integer(kind: type[np.integer[Any]], value: Any) -> bytes:
    limits = np.iinfo(kind)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"it must be an integer, not {value!r}")
    if not int(limits.min) <= value <= int(limits.max):
        raise ValueError(f"it must lie in {limits.min}..{limits.max}")
    return int(value).to_bytes(limits.bits // 8, "little", signed=bool(limits.kind == "i"))


def _bytes(source: Source | None) -> bytes | None:
    return source if source is None or isinstance(source, bytes) else Path(source).read_bytes()
