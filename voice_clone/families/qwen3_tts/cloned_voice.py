"""The voice of one request, whichever way it was given: what the talker needs to speak in it. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from voice_clone.errors import Internal, InvalidArgument
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.speech_request import SpeechRequest

EMBEDDING, CODES = "speaker_embedding", "codec_codes"  # artifacts of qwen3_tts_voice_encoder


@dataclass(frozen=True, eq=False)
class ClonedVoice:
    """A voice ready for the talker.

    Attributes:
        embedding: float32 [hidden size].
        codes: int32 [frames, codebooks] of the reference clip; no frames for x-vector cloning.
        transcript: the words of the reference clip; None for x-vector cloning.
        info: what `info` tells of it: `cache`, and for a registered voice its name and generation.
    """

    embedding: NDArray[np.float32]
    codes: NDArray[np.int32]
    transcript: str | None
    info: Mapping[str, Any]

    @property
    def mode(self) -> str:
        """`icl` for in-context cloning, else `x_vector`."""
        return "x_vector" if self.transcript is None else "icl"


def from_embedding(embedding: NDArray[np.float32], config: Qwen3TTSConfig) -> ClonedVoice:
    """A voice given as a ready speaker embedding, float32 [hidden size of the talker].

    Raises:
        InvalidArgument: its size is not this checkpoint's.
    """
    size = config.talker.hidden_size
    if embedding.shape != (size,):
        raise InvalidArgument(f"speaker_embedding has {embedding.size} values; this checkpoint needs {size}")
    return ClonedVoice(embedding, _no_codes(config), None, {"cache": "none"})


def from_cache(
    result: Mapping[str, Any], artifacts: bytes, request: SpeechRequest, config: Qwen3TTSConfig
) -> ClonedVoice:
    """A voice as speaker_cache resolved it for `request`.

    Raises:
        InvalidArgument: in-context cloning is insisted on, but the voice has no transcript.
    """
    tensors = load(artifacts)
    transcript = request.reference_text if request.voice is None else result.get("reference_text")
    if request.x_vector_only is False and transcript is None:
        raise InvalidArgument(
            f"voice {request.voice!r} has no transcript, so it cannot be cloned in context; "
            "register it again with reference_text, or leave x_vector_only out"
        )
    info = {"cache": result["status"]}
    if request.voice is not None:
        info |= {"voice": result["name"], "generation": result["generation"]}
    embedding = tensors[EMBEDDING]
    if embedding.shape != (config.talker.hidden_size,):
        raise Internal("the artifacts of this voice belong to another checkpoint")
    if transcript is None or request.x_vector_only:
        return ClonedVoice(embedding, _no_codes(config), None, info)
    return ClonedVoice(embedding, tensors[CODES], transcript, info)


def _no_codes(config: Qwen3TTSConfig) -> NDArray[np.int32]:
    return np.zeros((0, config.talker.num_code_groups), np.int32)
