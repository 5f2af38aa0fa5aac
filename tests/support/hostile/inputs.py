"""Inputs of every model as a caller might send them, with values that are good, odd or hostile."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.hostile.audio import GOOD, broken_audio
from voice_clone.triton.tensors import pack

OPERATIONS = ("upload", "get", "list", "delete", "prepare", "resolve", "stats", "export", "import")
TEXTS = (
    *(
        "",
        " ",
        "\0",
        "Mallory",
        "mallory\u0301",
        "a\0b",
        "../../../../etc/passwd",
        "..",
        ".",
        "/etc/shadow",
        "C:\\boot.ini",
    ),
    *(
        "~",
        "a/b",
        "%2e%2e%2f",
        "x" * 65,
        "x" * 100_000,
        "\u202e",
        "\ud7ff\uffff",
        "💣" * 40,
        "{}",
        "[1]",
        "null",
        '{"a": 1}',
    ),
    *(
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "'; DROP TABLE voices; --",
        "${HOME}",
        "$(reboot)",
        "%s%n",
        "\r\n\r\n",
        "nan",
    ),
    *("[" * 3000, '{"wait": "yes"}', '{"mode": 3}', '{"timeout": 1e999}', '{"unknown": true}', '{"reextract": null}'),
    *('{"mode": "../x"}', '{"timeout": -1}', '{"replace": "never"}', '{"wait": NaN}', '{"error": "cancelled: by me"}'),
)
INTEGERS = (-(2**31), -(10**6), -5, -1, 0, 1, 2, 3, 5, 1000, 5000, 10**6, 2**31 - 1)
FLOATS = (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e-45, 1e-9, 0.5, 2.0, 1e9, 3.4e38)
NUMPY = {"FP32": np.float32, "INT32": np.int32, "UINT64": np.uint64, "BOOL": np.bool_}


@dataclass
class Tensor:
    """An input as it goes over the wire; nothing in it need fit together."""

    name: str
    datatype: str
    shape: list[int]
    raw: bytes


@dataclass
class World:
    """What an attacker knows.

    Attributes:
        bundle: an export of a voice.
        live: ids of streams that belong to others.
    """

    bundle: bytes
    live: list[str] = field(default_factory=list)


def packed(values: Sequence[bytes]) -> bytes:
    """Elements of a BYTES tensor."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def string(name: str, value: str | bytes) -> Tensor:
    """A BYTES tensor of one element."""
    encoded = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return Tensor(name, "BYTES", [1], packed([encoded]))


def array(name: str, value: Any, dtype: str) -> Tensor:
    """A tensor of numbers."""
    made = np.ascontiguousarray(np.atleast_1d(np.asarray(value)).astype(NUMPY[dtype]))
    return Tensor(name, dtype, list(made.shape), made.tobytes())


def codes(rng: random.Random, frames: int) -> np.ndarray[Any, Any]:
    """Codec codes that a talker might send, int32 [frames, 16]."""
    return np.random.default_rng(rng.randrange(1000)).integers(0, 2048, (frames, 16))


def good_speech(rng: random.Random, world: World) -> list[Tensor]:
    """A short speech: inputs of `qwen3_tts`, those of qwen3_tts_prompt first."""
    source = [
        [string("voice", rng.choice(["Harbour", "Mallory", "Nobody"]))],
        [array("speaker_embedding", np.ones(64), "FP32")],
        [string("reference_audio", GOOD[rng.choice(list(GOOD))])],
        [string("reference_audio", GOOD["WAV"]), string("reference_text", "What is said.")],
        [string("reference_audio", broken_audio(rng))],
        [string("voice_prompt", rng.choice([world.bundle, _damaged(rng, world.bundle)]))],
    ]
    inputs = [string("text", rng.choice(["Hello.", "Good morning, everybody."])), *rng.choice(source)]
    if rng.random() < 0.3:
        inputs.append(string("language", "English"))
    if rng.random() < 0.3:
        inputs.append(array("x_vector_only", True, "BOOL"))
    if rng.random() < 0.2:
        inputs.append(array("cache", rng.random() < 0.5, "BOOL"))
    if rng.random() < 0.1:
        inputs.append(string("text_stream", rng.choice([text_stream(rng), rng.choice(TEXTS)])))
    return inputs


def text_stream(rng: random.Random) -> str:
    """The id of a stream whose text is appended; attackers share a few, so they append to each other's streams."""
    return f"{rng.randrange(20):032x}"


def good_append(rng: random.Random) -> list[Tensor]:
    """A piece of the text of a stream that may be open."""
    return [
        string("append", rng.choice([*[text_stream(rng)] * 5, rng.choice(TEXTS)])),
        string("text", rng.choice(["And so on. ", rng.choice(TEXTS)])),
        array("index", rng.choice([0, 0, 1, 2, *INTEGERS]), "INT32"),
        array("last", rng.random() < 0.3, "BOOL"),
    ]


def option_values(rng: random.Random) -> dict[str, Any]:
    """One of the options of the family, with a value that may be wrong."""
    name = rng.choice(["subtalker_temperature", "subtalker_top_p", "subtalker_top_k", "subtalker_do_sample"])
    values = {"subtalker_top_k": INTEGERS, "subtalker_do_sample": (True, False)}
    return {name: rng.choice([*values.get(name, (0.5, 1.0, *FLOATS)), *rng.choice([[], [None, "x", [1], {"a": 1}]])])}


def good_ensemble(rng: random.Random, world: World) -> list[Tensor]:
    """The same with the talker's knobs."""
    knobs = [
        array(name, rng.choice([0.5, 1.0, *FLOATS]), "FP32") for name in ("temperature", "top_p", "repetition_penalty")
    ]
    knobs += [array("top_k", rng.choice(INTEGERS), "INT32")]
    knobs += [array(name, rng.random() < 0.5, "BOOL") for name in ("do_sample", "non_streaming_mode")]
    knobs += [string("options", rng.choice([json.dumps(option_values(rng)), rng.choice(TEXTS)])) for _ in range(3)]
    knobs += [array("seed", rng.choice([0, 1, 2**64 - 1]), "UINT64")]
    frames = array("max_frames", rng.choice([1, 2, 5, 20]), "INT32")
    return [*good_speech(rng, world), frames, *rng.sample(knobs, rng.choice([0, 0, 1, 2]))]


def good_talker(rng: random.Random, world: World) -> list[Tensor]:
    """A prompt, a piece of text, a voice to forget, or a cancel of a stream that may be there."""
    if rng.random() < 0.1:
        return [string("cancel", rng.choice([*TEXTS, text_stream(rng)]))]
    if rng.random() < 0.3:
        return good_append(rng)
    if rng.random() < 0.05:
        return [string("forget", rng.choice([*TEXTS, '["Mallory"]', "[1]"]))]
    reference = rng.choice([0, 0, 5])
    prompt: dict[str, NDArray[Any]] = {
        "role_ids": np.array([1, 2, 3], np.int32),
        "text_ids": np.arange(10, dtype=np.int32),
        "reference_ids": np.arange(reference, dtype=np.int32),
        "reference_codes": codes(rng, reference).astype(np.int32),
        "speaker_embedding": np.full(64, rng.choice([1.0, 1.0, *FLOATS]), np.float32),
        "language_id": np.array([rng.choice([-1, -1, *INTEGERS])], np.int32),
        "speaker_id": np.array([rng.choice([-1, -1, -1, *INTEGERS])], np.int32),
        "instruct_ids": rng.choice([np.zeros(0, np.int32), np.arange(5, dtype=np.int32)]),
    }
    for _ in range(rng.choice([0, 0, 1, 2])):
        _spoil_array(rng, prompt)
    stream_id = rng.choice([f"{rng.getrandbits(64):x}", *world.live])
    more: dict[str, Any] = rng.choice(
        [{}, {"mode": "icl"}, {"prompt_ms": "x"}, {"prompt_ms": -1e300}, {"stream_id": rng.choice(TEXTS)}]
    )
    packed_prompt = pack(prompt)
    return [
        string("prompt", packed_prompt if rng.random() < 0.85 else _damaged(rng, packed_prompt)),
        string("prompt_info", rng.choice([json.dumps({"stream_id": stream_id, **more})] * 7 + [rng.choice(TEXTS)])),
        array("max_frames", rng.choice([1, 3, 10]), "INT32"),
        array("seed", rng.getrandbits(64), "UINT64"),
    ]


def _spoil_array(rng: random.Random, prompt: dict[str, NDArray[Any]]) -> None:
    """One thing made wrong in a prompt: its arrays' names, types, shapes or values."""
    name = rng.choice(list(prompt))
    values = prompt[name]
    kind = rng.randrange(5)
    if kind == 0:
        del prompt[name]
    elif kind == 1:
        prompt[rng.choice(["", "unknown", *TEXTS])] = values
    elif kind == 2:
        dtype = rng.choice([np.float64, np.float32, np.float16, np.int8, np.int32, np.int64, np.uint64, np.bool_])
        with np.errstate(invalid="ignore", over="ignore"):
            prompt[name] = values.astype(dtype)
    elif kind == 3:
        shape = rng.choice([(0,), (), (2,), (1, 1), (3, 16), (0, 0), (0, 16), (500,), (1, 5), (70000,), (4000, 16)])
        prompt[name] = np.resize(values, shape) if values.size else np.zeros(shape, values.dtype)
    elif values.size:
        hostile = rng.choice(FLOATS if values.dtype.kind == "f" else INTEGERS)
        with np.errstate(invalid="ignore", over="ignore"):
            values.reshape(-1)[rng.randrange(values.size)] = np.array(hostile).astype(values.dtype)


def good_code2wav(rng: random.Random, world: World) -> list[Tensor]:
    """A chunk of a stream of its own, a wrong one of a stream of another client, or a voice to forget."""
    if rng.random() < 0.05:
        return [string("forget", rng.choice([*TEXTS, '["Mallory"]', "[1]"]))]
    own = not world.live or rng.random() < 0.5
    index = rng.choice([0, 0, 0, *INTEGERS]) if own else rng.choice([-1, 10**6, 2**31 - 1, -(2**31)])
    return [
        string("stream_id", f"hostile {rng.randrange(20)}" if own else rng.choice(world.live)),
        array("codes", codes(rng, rng.choice([1, 2, 12])), "INT32"),
        array("context_codes", codes(rng, rng.choice([0, 0, 7])), "INT32"),
        array("chunk_index", index, "INT32"),
        array("final", rng.random() < 0.7, "BOOL"),
        string("info", rng.choice(["", "", "{}", '{"seed": 1}', '{"seed": "\\ud800"}', "\ud800"]) if own else ""),
    ]


def good_waveform(rng: random.Random, world: World) -> list[Tensor]:
    """A clip for an encoder."""
    samples = np.random.default_rng(0).uniform(-0.3, 0.3, rng.choice([0, 1, 16000, 32000]))
    waveform = samples * rng.choice([1.0, 1.0, *FLOATS])
    rate = array("sample_rate", rng.choice([16000, 24000, 8000, 192000, *INTEGERS]), "INT32")
    return [array("waveform", waveform, "FP32"), rate]


def good_clip(rng: random.Random, world: World) -> list[Tensor]:
    """The same with the mode, as the codec encoder takes it."""
    return [*good_waveform(rng, world), string("mode", rng.choice(["x_vector", "icl", "", "../x"]))]


def good_operation(rng: random.Random, world: World) -> list[Tensor]:
    """An operation of the speaker cache. The voice Harbour belongs to others: it is read, never written."""
    operation = rng.choice(OPERATIONS)
    reads = operation in ("get", "resolve", "export")
    name = rng.choice([rng.choice(["Harbour", "Mallory"] if reads else ["Mallory", "Eve"]), rng.choice(TEXTS)])
    audio = _damaged(rng, world.bundle) if operation == "import" else rng.choice([GOOD["WAV"], broken_audio(rng)])
    optional = [
        string("model_type", rng.choice([*["qwen3_tts"] * 3, rng.choice(["speaker_cache", *TEXTS])])),
        string("audio", audio),
        string("reference_text", rng.choice(["What is said.", rng.choice(TEXTS)])),
        string("consent", rng.choice(TEXTS)),
        string("description", rng.choice(TEXTS)),
        string("options", rng.choice(['{"wait": true}', '{"mode": "icl"}', '{"force": true}', *rng.sample(TEXTS, 3)])),
        array("speaker_embedding", np.full(rng.choice([64, 64, 0, 3]), rng.choice(FLOATS)), "FP32"),
        string("voice_prompt", rng.choice([world.bundle, _damaged(rng, world.bundle)])),
    ]
    likely = {"upload": optional[1:3], "import": optional[1:2], "resolve": optional[:1]}.get(operation, [])
    others = rng.sample(optional, rng.choice([0, 0, 0, 1, 2]))
    named = [] if operation in ("list", "stats", "import") and rng.random() < 0.9 else [string("name", name)]
    return list({each.name: each for each in [string("operation", operation), *named, *likely, *others]}.values())


GOOD_REQUESTS: dict[str, Callable[[random.Random, World], list[Tensor]]] = {
    "qwen3_tts": good_ensemble,
    "qwen3_tts_prompt": good_speech,
    "qwen3_tts_talker": good_talker,
    "qwen3_tts_code2wav": good_code2wav,
    "qwen3_tts_voice_encoder": good_clip,
    "speaker_cache": good_operation,
}


def _damaged(rng: random.Random, bundle: bytes) -> bytes:
    data = bytearray(bundle)
    kind = rng.randrange(5)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        data[:8] = struct.pack("<Q", rng.choice([0, 1, len(data), 10**9, 2**63, 2**64 - 1]))
    if kind == 2:
        head = 8 + int.from_bytes(data[:8], "little")
        data[8 + rng.randrange(head - 8)] = rng.randrange(256)
    if kind == 3:
        for _ in range(rng.choice([1, 50])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data) + rng.randbytes(rng.choice([0, 0, 100]))
