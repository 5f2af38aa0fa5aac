"""Networks on ONNX Runtime in this process, each with the interface of its torch module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from voice_clone.array_kinds import Numbers
from voice_clone.codec.decoder import StreamDecoder, StreamState
from voice_clone.families.qwen3_tts.config import CodecConfig, SpeakerEncoderConfig
from voice_clone.families.qwen3_tts.networks.onnx_graphs import (
    CODE2WAV_STEP,
    CODEC_ENCODER,
    NEXT,
    SPEAKER_ENCODER,
    STATE,
)
from voice_clone.families.qwen3_tts.networks.speaker_clip import check_clip
from voice_clone.onnx.session import Runtime, Session

if TYPE_CHECKING:  # it imports numba, which an encoder's process does without
    from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder


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


class OnnxCodecDecoder(StreamDecoder[Tensor]):
    """As `CodecDecoder`, as far as streams need it.

    Args:
        decoder: says how far back the convolutions look; its weights are not used.
    """

    any_shape = False

    def __init__(self, runtime: Runtime, fingerprint: str, decoder: CodecDecoder, codec: CodecConfig) -> None:
        self._session = Session(runtime, CODE2WAV_STEP, fingerprint)
        self._memory = decoder.receptive_field
        self._frame = codec.decode_upsample_rate
        self._buffers = [
            name.removeprefix(STATE)
            for name in self._session.inputs
            if name.startswith(STATE) and name != f"{STATE}position"
        ]

    @property
    def device(self) -> torch.device:
        """Where codes are expected and states lie."""
        return self._session.device

    def new_state(self, batch: int) -> StreamState[Tensor]:
        """The state of `batch` streams before their first frame."""
        buffers = []
        for name in self._buffers:
            (dtype, _), shape = self._session.inputs[STATE + name]
            buffers.append(torch.zeros(batch, *shape[1:], dtype=dtype, device=self.device))
        return StreamState(torch.zeros(batch, dtype=torch.int64, device=self.device), buffers)

    def decode_chunk(self, codes: Tensor, state: StreamState[Tensor]) -> Tensor:
        """int64 [B, K, n] and the streams' state, which moves on -> [B, n * 1920]; as `CodecDecoder.decode_chunk`."""
        return self._step(codes, state, codes.shape[-1])

    def prime(self, codes: Tensor, state: StreamState[Tensor]) -> None:
        """Move fresh streams on over frames whose audio is not wanted; as `CodecDecoder.prime`."""
        self._step(codes, state, min(codes.shape[-1], self._memory))

    def _step(self, codes: Tensor, state: StreamState[Tensor], kept: int) -> Tensor:
        """Decode frames and keep the samples of the last `kept`."""
        batch, _, new = codes.shape
        tensors = dict(zip(("position", *self._buffers), (state.position, *state.buffers), strict=True))
        frames = torch.arange(new - kept, new, device=self.device)
        inputs = {"codes": codes, "frames": frames} | {STATE + name: tensor for name, tensor in tensors.items()}
        shapes = {"waveform": (batch, kept * self._frame)}
        shapes |= {NEXT + name: tuple(tensor.shape) for name, tensor in tensors.items()}
        outputs = self._session.run(inputs, shapes)
        state.position = outputs[f"{NEXT}position"]
        state.buffers = [outputs[NEXT + name] for name in self._buffers]
        return outputs["waveform"]
