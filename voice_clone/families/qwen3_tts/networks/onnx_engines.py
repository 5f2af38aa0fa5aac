"""Networks outside torch, each with the interface of its torch module.

An `Onnx...` class runs its network in this process, on ONNX Runtime. The network of a `Served...` class is a model of
the same server, on Triton's own ONNX Runtime or TensorRT backend, which batches across requests. Such a backend cannot
refuse a clip that the network does not take, so the class refuses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from voice_clone.codec.decoder import StreamDecoder, StreamState
from voice_clone.errors import Internal
from voice_clone.families.qwen3_tts.config import CodecConfig
from voice_clone.families.qwen3_tts.networks.onnx_graphs import (
    CODE2WAV_STEP,
    CODEC_ENCODER,
    NEXT,
    SPEAKER_ENCODER,
    STATE,
)
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.onnx.session import Runtime, Session
from voice_clone.stages.protocols import Call

if TYPE_CHECKING:  # it imports numba, which an encoder's process does without
    from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder

SPEAKER_ENCODER_NETWORK, CODEC_ENCODER_NETWORK = "qwen3_tts_speaker_encoder_network", "qwen3_tts_codec_encoder_network"


class OnnxSpeakerEncoder:
    """As `SpeakerEncoder`.

    Args:
        encoder: says what waveforms it takes; its weights are not used.
    """

    def __init__(self, runtime: Runtime, fingerprint: str, encoder: SpeakerEncoder) -> None:
        self._session = Session(runtime, SPEAKER_ENCODER, fingerprint)
        self._encoder = encoder

    def embed(self, waveform: Tensor) -> Tensor:
        """float32 [T] -> float32 [enc_dim]; as `SpeakerEncoder.embed`."""
        self._encoder.check(waveform)
        inputs = {"waveform": waveform[None].to(self._session.device, torch.float32)}
        return self._session.run(inputs, {"speaker_embedding": (1, self._encoder.config.enc_dim)})["speaker_embedding"][
            0
        ]


class OnnxCodecEncoder:
    """As `CodecEncoder`."""

    def __init__(self, runtime: Runtime, fingerprint: str, codec: CodecConfig) -> None:
        self._session = Session(runtime, CODEC_ENCODER, fingerprint)
        self._frame = codec.decode_upsample_rate  # samples a frame
        self._codebooks = codec.encoder_valid_num_quantizers

    def encode(self, waveform: Tensor) -> Tensor:
        """float32 [T] -> int64 [frames, codebooks]; as `CodecEncoder.encode`."""
        inputs = {"waveform": waveform[None].to(self._session.device, torch.float32)}
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
