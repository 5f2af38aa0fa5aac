"""Encoders that are models of the same server, on Triton's own ONNX Runtime or TensorRT backend, which batches across
requests. Such a backend cannot refuse a clip that the network does not take, so these classes refuse it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.array_kinds import Numbers, array_of
from voice_clone.errors import Internal
from voice_clone.families.qwen3_tts.config import CodecConfig, SpeakerEncoderConfig
from voice_clone.families.qwen3_tts.networks.speaker_clip import check_clip
from voice_clone.stages.protocols import Call

SPEAKER_ENCODER_GRAPH, CODEC_ENCODER_GRAPH = "qwen3_tts_speaker_encoder_graph", "qwen3_tts_codec_encoder_graph"


class ServedSpeakerEncoder:
    """As `SpeakerEncoder`."""

    def __init__(self, call: Call, config: SpeakerEncoderConfig) -> None:
        self._call = call
        self._config = config

    def embed(self, waveform: Numbers) -> NDArray[np.float32]:
        """float32 [T] -> float32 [enc_dim]; as `SpeakerEncoder.embed`."""
        check_clip(waveform, self._config)
        return _run(self._call, SPEAKER_ENCODER_GRAPH, waveform, "speaker_embedding", (self._config.enc_dim,))


class ServedCodecEncoder:
    """As `CodecEncoder`."""

    def __init__(self, call: Call, codec: CodecConfig) -> None:
        self._call = call
        self._frame = codec.decode_upsample_rate  # samples a frame
        self._codebooks = codec.encoder_valid_num_quantizers

    def encode(self, waveform: Numbers) -> NDArray[np.int64]:
        """float32 [T] -> int64 [frames, codebooks]; as `CodecEncoder.encode`."""
        shape = (-(-waveform.shape[0] // self._frame), self._codebooks)
        return _run(self._call, CODEC_ENCODER_GRAPH, waveform, "codec_codes", shape).astype(np.int64)


def _run(call: Call, model: str, waveform: Numbers, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The model's output `name` for one waveform [T], a batch of one there."""
    output = call(model, {"waveform": array_of(waveform)[None]})[name]
    if output.shape != (1, *shape):
        raise Internal(f"{model} answered {name} as {list(output.shape)}, not {[1, *shape]}")
    answer: NDArray[Any] = output[0]
    return answer
