"""Triton's answers as values; the sync and the async client read the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferResult

from .errors import (
    BrokenStream,
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    Incomplete,
    Internal,
    Overloaded,
    Unsupported,
    VoiceCloneError,
    from_status,
    renamed,
)
from .types import Chunk, Consent, Detection, Family, KeptDictionary, Preset, Voice, is_whole

_TRANSIENT = (Cancelled, ConnectionFailed, DeadlineExceeded, Overloaded)
_NAME_ONE = "name the model family: give `model`"


def rpc_error(error: Any) -> VoiceCloneError:
    return from_status(error.code().name, error.details() or "")


class MarkIgnored(Unsupported):
    """The server speaks without the mark that it was asked for: it is older than the parameter."""


class SpeechReader:
    """Turns the responses of one speech into chunks and detects missing ones.

    Args:
        require_whole: a speech whose end the model missed is an error.
        mark: what the request asks for; see `Client`.
    """

    def __init__(self, require_whole: bool, mark: str | None) -> None:
        self._require_whole = require_whole
        self._mark = mark
        self.info: Mapping[str, Any] | None = None
        self.finished = False
        self.sample_rate = 0
        self._next_index = 0

    def chunk(self, message: Any) -> Chunk | None:
        """The chunk in a ModelStreamInferResponse; None for an empty one, which only marks the end of the request.

        Raises:
            VoiceCloneError: the server's, if the message carries one.
            BrokenStream: the chunk is not the next one.
            MarkIgnored: it is the first one, and says nothing of the mark that was asked for.
        """
        if message.error_message:  # Triton refuses an unknown model or tensor in this way
            raise renamed(from_status("INVALID_ARGUMENT", message.error_message), {"name": "voice"})
        response = message.infer_response
        if not response.outputs:
            return None
        tensors = InferResult(response)
        index = int(_tensor(tensors, "chunk_index")[0])
        if self.finished:
            raise BrokenStream(f"chunk {index} came after the final one")
        if index != self._next_index:
            raise BrokenStream(f"chunk {index} came where chunk {self._next_index} was due")
        self._next_index += 1
        self.finished = bool(_tensor(tensors, "final")[0])
        text = tensors.as_numpy("info")
        info = json.loads(text[0]) if text is not None and text[0] else None
        self.info = {**(self.info or {}), **info} if info else self.info
        if index == 0 and self._mark in ("on", "required") and "mark" not in (info or {}):
            raise MarkIgnored(f"this server does not know `mark {self._mark}`: its speech has no mark; update it")
        self.sample_rate = int(_tensor(tensors, "sample_rate")[0])
        return Chunk(
            samples=_tensor(tensors, "audio").astype(np.float32, copy=False),
            sample_rate=self.sample_rate,
            index=index,
            final=self.finished,
            info=info,
        )

    def end(self) -> None:
        """Check that the final chunk came before the end of the stream.

        Raises:
            BrokenStream: it did not.
            Incomplete: the speech is not whole, but must be.
        """
        if not self.finished:
            raise BrokenStream(f"the stream ended after {self._next_index} chunks without a final one")
        if self._require_whole and not self.whole:
            raise missed_end(self.info)

    @property
    def finish_reason(self) -> str | None:
        """How the speech ended; None before its end."""
        reason = (self.info or {}).get("finish_reason")
        return str(reason) if self.finished and reason is not None else None

    @property
    def whole(self) -> bool:
        """Whether all chunks came and the model said the text to its end, or as far as the caller wanted."""
        return is_whole(self.finish_reason)


class Samples:
    """Joins chunks. The buffer grows in place, so a long speech is in memory once."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, chunk: Chunk) -> None:
        self._data += chunk.samples.tobytes()

    def all(self) -> NDArray[np.float32]:
        """All samples so far [n]."""
        return np.frombuffer(self._data, np.float32)


def missed_end(info: Mapping[str, Any] | None) -> Incomplete:
    """Make the error of a speech that is not whole from the server's last info."""
    info = info or {}
    return Incomplete(info.get("finish_reason"), info.get("characters"))


def result(response: Any) -> Any:
    return json.loads(_tensor(InferResult(response), "result")[0])


def detection(response: Any) -> Detection:
    """What the `mark_detector` has found."""
    return Detection(**result(response))


def transcript(response: Any) -> str:
    """The words that the `transcriber` has recognised."""
    return str(_tensor(InferResult(response), "text").reshape(-1)[0], "utf-8", "replace").strip()


def artifacts(response: Any) -> bytes:
    return bytes(_tensor(InferResult(response), "artifacts")[0])


def speaker_embedding(response: Any) -> NDArray[np.float32]:
    """The speaker embedding [dimension] among the artifacts of a `speaker_cache` answer.

    Raises:
        Unsupported: they contain none.
    """
    from safetensors.numpy import load  # most clients never read one

    data = artifacts(response)  # empty where an alias stands for a voice that the model brings
    tensors = load(data) if data else {}
    if "speaker_embedding" not in tensors:
        raise Unsupported("the voices of this model have no speaker embedding")
    embedding: NDArray[np.float32] = tensors["speaker_embedding"].astype(np.float32)
    return embedding


def voice(response: Any) -> Voice:
    return Voice.from_record(result(response))


def voices(response: Any) -> list[Voice]:
    return [Voice.from_record(record) for record in result(response)["speakers"]]


def consent(response: Any) -> Consent:
    return Consent.from_record(result(response))


def consents(response: Any) -> list[Consent]:
    return [Consent.from_record(record) for record in result(response)["speakers"]]


def dictionary(response: Any) -> KeptDictionary:
    return KeptDictionary.from_record(result(response), artifacts(response) or None)


def dictionaries(response: Any) -> list[KeptDictionary]:
    return [KeptDictionary.from_record(record) for record in result(response)["speakers"]]


def aliases(response: Any) -> dict[str, str]:
    return {record["name"]: record["voice"] for record in result(response)["speakers"] if record.get("voice")}


def presets(response: Any) -> list[Preset]:
    """The voices that checkpoints bring, in the answer of the operation `presets`."""
    found = result(response).get("presets", ())
    return [Preset(each["name"], each["model_type"], each["registered"]) for each in found]


def models(response: Any) -> list[str]:
    """The model families in the answer of the operation `stats`; the first is the default."""
    return list(families(response))


def families(response: Any) -> dict[str, Family]:
    """The model families in the answer of the operation `stats`, each with what it can do."""
    stats = result(response)
    return {
        family: Family(
            stats["instructions"].get(family),
            family in stats["voiceless"],
            stats["options"].get(family, {}),
            tuple(stats["languages"].get(family, ())),
            stats.get("max_characters", {}).get(family),
            stats.get("synthesizers", {}).get(family),
        )
        for family in stats["model_types"]
    }


def default_model(families: Sequence[str]) -> str:
    """The default of these families.

    Raises:
        Unsupported: the list is empty.
    """
    if not families:
        raise Unsupported("this server has no model family")
    return families[0]


def without_default(error: VoiceCloneError) -> VoiceCloneError:
    """The error of a call that needed the default family. If a retry cannot help, its text says what does."""
    if isinstance(error, _TRANSIENT) or _NAME_ONE in error.text:
        return error
    return type(error)(f"{error.text}; {_NAME_ONE}")


def _tensor(tensors: InferResult, name: str) -> NDArray[Any]:
    array: NDArray[Any] | None = tensors.as_numpy(name)
    if array is None:
        raise Internal(f"the server's answer lacks {name!r}; do client and server belong together?")
    return array
