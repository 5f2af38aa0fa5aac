"""The calls as Triton messages; the sync and the async client send the same."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tritonclient.grpc import service_pb2

from .clips import readable
from .errors import InvalidArgument, VoiceCloneError, quoted, renamed
from .fields import DTYPES, SOURCES, Knobs
from .sources import Source, content
from .types import SpeechOptions, StreamOptions, UploadOptions

if TYPE_CHECKING:
    from voice_clone_text.parts import Part

CACHE = "speaker_cache"
ALIGNER = "aligner"
DETECTOR = "mark_detector"
TRANSCRIBER = "transcriber"
PAGE = 1000  # voices that a list asks for at once: about a megabyte

_NAMING = ("upload", "import", "set_alias")  # operations that take names
OWNING = (*_NAMING, "record_consent", "keep_dictionary")
_DTYPES = {**DTYPES, "index": "INT32", "last": "BOOL", "sample_rate": "INT32", "final": "BOOL"}
"""Triton's type of each input that is no string."""
_VOICE = ("voice", "reference_audio", "reference_text", "speaker_embedding", "voice_prompt", "x_vector_only")
_INTEGERS: dict[str, type[np.integer[Any]]] = {"INT32": np.int32, "UINT64": np.uint64}


def speech(
    text: str | None, options: StreamOptions, owner: str | None, mark: str | None, kind: type = SpeechOptions
) -> Any:
    """The request of one speech, without the name of its model. The server decides which combinations are valid.

    Args:
        text: None if all of it is appended.
        options: those of `kind`.
        owner: for whom the caller acts; None for the operator.
        mark: see `Client`.

    Raises:
        TypeError: an option is unknown.
        InvalidArgument: a value does not fit its tensor, or JSON cannot hold an option; or as `clips.readable`.
        OSError: the file of the reference audio or of the prompt cannot be read.
    """
    knobs, others = Knobs.__annotations__, kind.__annotations__
    for name in options:
        if name not in others:
            raise TypeError(f"speak() has no parameter {name!r}; its knobs are {', '.join(knobs)}")
    inputs = {"text": text, **{name: options.get(name) for name in _VOICE}}
    inputs |= {name: value for name, value in options.items() if name in knobs}
    inputs["reference_audio"] = _clip(options.get("reference_audio"), "reference_audio")
    if (prompt := options.get("voice_prompt")) is not None:
        inputs["voice_prompt"] = content(prompt)
    if (own := options.get("options")) is not None:
        inputs["options"] = _json(own)
    request = infer("", inputs)
    if owner is not None:
        request.parameters["owner"].string_param = owner
    if mark is not None:
        request.parameters["mark"].string_param = mark
    if options.get("synthesizer"):
        request.parameters["synthesizer"].bool_param = True
    return request


def repeatable(text: str, options: SpeechOptions) -> SpeechOptions:
    """The options of a speech that takes several requests, with its files read: once, and as they are now.

    Raises: as `speech` of all of `text`.
    """
    clip, prompt = options.get("reference_audio"), options.get("voice_prompt")
    read: SpeechOptions = {
        **options,
        "reference_audio": _clip(clip),
        "voice_prompt": None if prompt is None else content(prompt),
    }
    speech(text, read, None, None)
    return read


def is_voiceless(options: Mapping[str, object]) -> bool:
    """Whether a speech names no voice."""
    return all(options.get(name) is None for name in SOURCES)


def of_part(request: Any, part: Part) -> Any:
    """The request of a speech as the one of a part of its text."""
    inputs = {"text_stream": part.id, "seed": part.seed, "max_frames": part.max_frames}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    made = infer(request.model_name, inputs)
    for given, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if given.name not in inputs:
            made.inputs.append(given)
            made.raw_input_contents.append(raw)
    for name, value in request.parameters.items():
        made.parameters[name].CopyFrom(value)
    return made


def cache(
    operation: str,
    *,
    name: str | None = None,
    model_type: str | None = None,
    audio: Source | None = None,
    bundle: bytes | None = None,
    reference_text: str | None = None,
    consent: str | None = None,
    description: str | None = None,
    speaker_embedding: ArrayLike | None = None,
    reserved: Sequence[str] = (),
    **options: bool | float | str | list[int] | None,
) -> Any:
    """The request of one `speaker_cache` operation; an option that is None is not sent. Raises: as `speech`."""
    sent: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if operation not in _NAMING:
        reserved = ()
    if reserved:
        sent["reserved"] = list(reserved)
    return infer(
        CACHE,
        {
            "operation": operation,
            "name": name,
            "model_type": model_type,
            "audio": _clip(audio) if bundle is None else bundle,
            "reference_text": reference_text,
            "consent": consent,
            "description": description,
            "speaker_embedding": speaker_embedding,
            "options": json.dumps(sent) if sent else None,
        },
    )


def upload(
    name: str, audio: Source | Sequence[Source] | None, options: UploadOptions, model: str | None
) -> dict[str, Any]:
    """The fields of the operation `upload`.

    Args:
        model: of the client.

    Raises:
        TypeError: an option is unknown.
    """
    for key in options:
        if key not in UploadOptions.__annotations__:
            raise TypeError(f"upload() has no parameter {key!r}")
    fields = {key: None if value is False else value for key, value in options.items()}
    if isinstance(audio, list | tuple):
        files = files_of(audio)
        audio = b"".join(files) if files else None
        fields["takes"] = [len(file) for file in files] if len(files) > 1 else None
    return {"name": name, "audio": audio, "model_type": fields.pop("model", None) or model, **fields}


def files_of(audio: Any) -> list[bytes]:
    """The bytes of the recordings of an upload. Raises: as `speech`."""
    return [_clip(each) or b"" for each in (audio if isinstance(audio, list | tuple) else [audio])]


def patient(usual: float | None) -> float | None:
    """How long to wait for an optional model: a detector has half a second more for each second of at most 600."""
    return usual if usual is None or usual < 60.0 else usual + 300.0


def detection(audio: Source) -> Any:
    """The request to look for a mark. Raises: as `speech`."""
    return infer(DETECTOR, {"audio": _clip(audio)})


def transcription(audio: Source, language: str | None) -> Any:
    """The request to write down the words of a clip. Raises: as `speech`."""
    return infer(TRANSCRIBER, {"audio": _clip(audio), "language": language})


def alignment(
    samples: NDArray[np.float32],
    id: str,
    *,
    final: bool,
    first: tuple[str, int, str | None] | None,
) -> Any:
    """The request to align the next piece of a speech.

    Args:
        samples: [n], mono.
        id: of the speech.
        final: no more follow.
        first: with the first piece: text, sample rate and language.
    """
    text, rate, language = first or (None, None, None)
    inputs = {"alignment": id, "final": final, "text": text, "sample_rate": rate, "language": language}
    request = infer(ALIGNER, inputs)
    request.inputs.add(name="audio", datatype="FP32", shape=[len(samples)])
    request.raw_input_contents.append(samples.astype("<f4", copy=False).tobytes())
    return request


def infer(model: str, inputs: Mapping[str, Any]) -> Any:
    """A ModelInferRequest with the `inputs` that are not None, as raw little-endian tensors.

    Raises:
        InvalidArgument: a value does not fit its tensor.
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
                raise ValueError(f"it must be True or False, not {quoted(value)}")
            return 1, struct.pack("<?", value)
        if dtype == "FP32":
            return 1, struct.pack("<f", value)
        return 1, _integer(_INTEGERS[dtype], value)
    except UnicodeError:
        raise InvalidArgument(f"`{name}` cannot be sent: it is not UTF-8") from None
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise InvalidArgument(f"`{name}` cannot be sent: {error}") from None


def family(model: str) -> str:
    """The name of a model family, as it can be sent.

    Raises:
        InvalidArgument: it is no string of UTF-8.
    """
    _, raw = _encode("model", "BYTES", model)
    return raw[4:].decode()  # behind the length


def _utf8(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"it must be a string, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError:  # an argument of a shell whose locale is not UTF-8 has its bytes
        raw = value.encode(errors="surrogateescape")
        raw.decode()
        return raw


def _integer(kind: type[np.integer[Any]], value: Any) -> bytes:
    limits = np.iinfo(kind)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"it must be an integer, not {quoted(value)}")
    if not int(limits.min) <= value <= int(limits.max):
        raise ValueError(f"it must lie in {limits.min}..{limits.max}")
    return int(value).to_bytes(limits.bits // 8, "little", signed=bool(limits.kind == "i"))


def _clip(source: Source | None, name: str = "audio") -> bytes | None:
    try:
        return None if source is None else readable(source)
    except VoiceCloneError as error:
        raise renamed(error, {"audio": name}) from None


def _json(options: Any) -> str:
    """The JSON text of a family's options.

    Raises:
        InvalidArgument: JSON cannot hold a value; the text names it.
    """
    if not isinstance(options, Mapping):
        raise InvalidArgument(f"`options` must be a mapping of names to values, not {type(options).__name__}")
    try:
        return json.dumps(_plain("options", options), ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise InvalidArgument("`options` cannot be sent: they are nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise InvalidArgument(f"`options` cannot be sent: {error}") from None


def _plain(name: str, value: Any) -> Any:
    """`value` in Python's types for JSON; `name` is its place, for the error."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidArgument(f"`{name}` cannot be sent: its key {quoted(key)} is not a string")
        return {key: _plain(f"{name}.{key}", entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(f"{name}[{index}]", entry) for index, entry in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"`{name}` cannot be sent: JSON has no number {value}")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidArgument(f"`{name}` cannot be sent: JSON cannot hold a value of type {type(value).__name__}")
