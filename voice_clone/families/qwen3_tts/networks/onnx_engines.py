"""Networks on ONNX Runtime in this process, each with the interface of its torch module."""

from __future__ import annotations

import torch
from torch import Tensor

from voice_clone.array_kinds import Numbers
from voice_clone.families.qwen3_tts.config import CodecConfig, SpeakerEncoderConfig
from voice_clone.families.qwen3_tts.networks.onnx_graphs import CODEC_ENCODER, SPEAKER_ENCODER
from voice_clone.families.qwen3_tts.networks.speaker_clip import check_clip
from voice_clone.onnx.session import Runtime, Session


class OnnxSpeakerEncoder:
    """As `SpeakerEncoder`."""

    def __init__(self, runtime: Runtime, fingerprint: str, config: SpeakerEncoderConfig) -> None:
        self._session = Session(runtime, SPEAKER_ENCODER, fingerprint)
        self._config = config

    def embed(self, waveform: Numbers) -> Tensor:
        """float32 [T] -> float32 [enc_dim]; as `SpeakerEncoder.embed`."""
        check_clip(waveform, self._config)
        inputs = {"waveform": torch.as_tensor(waveform)[None].to(self._session.device, torch.float32)}
        shape = (1, self._config.enc_dim)
        return self._session.run(inputs, {"speaker_embedding": shape})["speaker_embedding"][0]


class OnnxCodecEncoder:
    """As `CodecEncoder`."""

    def __init__(self, runtime: Runtime, fingerprint: str, codec: CodecConfig) -> None:
        self._session = Session(runtime, CODEC_ENCODER, fingerprint)
        self._frame = codec.decode_upsample_rate  # samples a frame
        self._codebooks = codec.encoder_valid_num_quantizers

    def encode(self, waveform: Numbers) -> Tensor:
        """float32 [T] -> int64 [frames, codebooks]; as `CodecEncoder.encode`."""
        inputs = {"waveform": torch.as_tensor(waveform)[None].to(self._session.device, torch.float32)}
        shape = (1, -(-waveform.shape[0] // self._frame), self._codebooks)
        return self._session.run(inputs, {"codec_codes": shape})["codec_codes"][0].long()
