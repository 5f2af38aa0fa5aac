"""The encoders whose network is a model of the same server, each with the interface of its torch module.

That model runs on Triton's own ONNX Runtime or TensorRT backend and batches across requests. What such a backend cannot
do stays here: refusing a clip that the network does not take.
"""

from __future__ import annotations

import torch
from torch import Tensor

from voice_clone.errors import Internal
from voice_clone.families.qwen3_tts.config import CodecConfig
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.stages.protocols import Call

SPEAKER_ENCODER_NETWORK, CODEC_ENCODER_NETWORK = "qwen3_tts_speaker_encoder_network", "qwen3_tts_codec_encoder_network"


class ServedSpeakerEncoder:
    """As `SpeakerEncoder`.

    Args:
        encoder: says what waveforms it takes; its weights are not used.
    """

    def __init__(self, call: Call, encoder: SpeakerEncoder) -> None:
        self._call = call
        self._encoder = encoder

    def embed(self, waveform: Tensor) -> Tensor:
        """float32 [T] -> float32 [enc_dim]; as `SpeakerEncoder.embed`."""
        self._encoder.check(waveform)
        shape = (self._encoder.config.enc_dim,)
        return _run(self._call, SPEAKER_ENCODER_NETWORK, waveform, "speaker_embedding", shape)


class ServedCodecEncoder:
    """As `CodecEncoder`."""

    def __init__(self, call: Call, codec: CodecConfig) -> None:
        self._call = call
        self._frame = codec.decode_upsample_rate  # samples a frame
        self._codebooks = codec.encoder_valid_num_quantizers

    def encode(self, waveform: Tensor) -> Tensor:
        """float32 [T] -> int64 [frames, codebooks]; as `CodecEncoder.encode`."""
        shape = (-(-waveform.shape[0] // self._frame), self._codebooks)
        return _run(self._call, CODEC_ENCODER_NETWORK, waveform, "codec_codes", shape).long()


def _run(call: Call, model: str, waveform: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """The model's output `name` for one waveform [T], a batch of one there."""
    output = call(model, {"waveform": waveform[None].numpy()})[name]
    if output.shape != (1, *shape):
        raise Internal(f"{model} answered {name} as {list(output.shape)}, not {[1, *shape]}")
    return torch.from_numpy(output[0])
