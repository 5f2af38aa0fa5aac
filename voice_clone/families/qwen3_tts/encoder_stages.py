"""A clip to the artifacts of its voice: the two `voice_clone.stages.protocols.EncoderStage`s."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.errors import CheckpointError, Unsupported
from voice_clone.families.qwen3_tts.checkpoint import CODEC, MODEL, Checkpoint
from voice_clone.families.qwen3_tts.config import CodecConfig, Qwen3TTSConfig, SpeakerEncoderConfig
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.onnx_engines import (
    OnnxCodecEncoder,
    OnnxSpeakerEncoder,
    ServedCodecEncoder,
    ServedSpeakerEncoder,
)
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.families.qwen3_tts.prompt import CODES, EMBEDDING
from voice_clone.settings import EncoderSettings, Settings
from voice_clone.stages.loading import empty, load_encoder_network
from voice_clone.stages.protocols import Arrays, Call, Limit, check_clip

MODES = {"icl": ("reference_text",), "x_vector": ()}
"""In context with the transcript of the clip, else by the speaker embedding alone."""


class SpeakerStage:
    """Waveform to speaker embedding, float32 [size]."""

    modes = None
    presets = ()

    def __init__(
        self,
        encoder: SpeakerEncoder | OnnxSpeakerEncoder | ServedSpeakerEncoder,
        config: SpeakerEncoderConfig,
        fingerprint: str,
    ) -> None:
        self._encoder = encoder
        self._size = config.enc_dim
        self.sample_rate = config.sample_rate
        self.fingerprints = {"fingerprint": fingerprint}

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """No limits: the size of an embedding is fixed."""
        return {}

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """The same in every mode."""
        if waveform.size == 0:
            return {EMBEDDING: np.zeros(self._size, np.float32)}
        return {EMBEDDING: self._encoder.embed(torch.from_numpy(waveform)).float().cpu().numpy()}


class CodecStage:
    """Waveform to codec codes, int32 [frames, codebooks]; none in mode `x_vector`."""

    modes = MODES
    presets = ()

    def __init__(
        self,
        encoder: CodecEncoder | OnnxCodecEncoder | ServedCodecEncoder,
        config: CodecConfig,
        fingerprint: str,
        max_frames: int,
    ) -> None:
        self._encoder = encoder
        self._max_frames = max_frames
        self._codebook_size = config.decoder_config.codebook_size
        self._codebooks = config.encoder_valid_num_quantizers
        self.sample_rate = config.input_sample_rate
        self.fingerprints = {"fingerprint": fingerprint}

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """Codes of the codebooks, at most as many frames as code2wav takes; no frames in mode `x_vector`."""
        return {CODES: Limit(self._codebook_size, (0, 0) if mode == "x_vector" else (1, self._max_frames))}

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """The codes of a clip."""
        if waveform.size == 0 or mode == "x_vector":
            return {CODES: np.zeros((0, self._codebooks), np.int32)}
        codes = self._encoder.encode(torch.from_numpy(waveform)).cpu().numpy().astype(np.int32, copy=False)
        check_clip(len(codes), self._max_frames)
        return {CODES: codes}


def load_speaker_encoder(
    given: Settings, call: Call | None = None
) -> tuple[SpeakerEncoder | OnnxSpeakerEncoder | ServedSpeakerEncoder, Qwen3TTSConfig, str]:
    """The speaker encoder on its engine, the configuration, and the encoder's fingerprint.

    A fingerprint does not depend on the engine: all give the same codes, and embeddings that differ by rounding, so a
    voice that was registered with one serves the other.

    Args:
        call: asks other models of the server; engine triton needs it.
    """
    settings = EncoderSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    if checkpoint.config.kind != "base":
        raise CheckpointError(f"this is no Base checkpoint; serve it as qwen3_tts_{checkpoint.config.kind}")
    encoder = empty(lambda: SpeakerEncoder(checkpoint.config.speaker_encoder))
    fingerprint = checkpoint.stage_fingerprint(MODEL, "speaker_encoder.", list(encoder.state_dict()))
    if settings.engine == "triton":
        return ServedSpeakerEncoder(_network(settings, fingerprint, call), encoder), checkpoint.config, fingerprint
    if settings.engine == "onnx":
        return OnnxSpeakerEncoder(compute.runtime(settings), fingerprint, encoder), checkpoint.config, fingerprint
    return (
        load_encoder_network(settings, encoder, checkpoint, MODEL, "speaker_encoder."),
        checkpoint.config,
        fingerprint,
    )


def load_codec_encoder(
    given: Settings, call: Call | None = None
) -> tuple[CodecEncoder | OnnxCodecEncoder | ServedCodecEncoder, Qwen3TTSConfig, str]:
    """The codec encoder on its engine, the configuration, and the encoder's fingerprint; as `load_speaker_encoder`."""
    settings = EncoderSettings.of(given)
    checkpoint = Checkpoint(settings.checkpoint_dir)
    codec = checkpoint.config.codec
    encoder = empty(lambda: CodecEncoder(codec.encoder_config, codec.encoder_valid_num_quantizers))
    fingerprint = checkpoint.stage_fingerprint(CODEC, "encoder.", list(encoder.state_dict()))
    if settings.engine == "triton":
        return ServedCodecEncoder(_network(settings, fingerprint, call), codec), checkpoint.config, fingerprint
    if settings.engine == "onnx":
        return OnnxCodecEncoder(compute.runtime(settings), fingerprint, codec), checkpoint.config, fingerprint
    loaded = load_encoder_network(settings, encoder, checkpoint, CODEC, "encoder.")
    return loaded, checkpoint.config, fingerprint


def load_speaker_stage(settings: Settings, call: Call | None = None) -> SpeakerStage:
    """As the settings ask for it."""
    encoder, config, fingerprint = load_speaker_encoder(settings, call)
    return SpeakerStage(encoder, config.speaker_encoder, fingerprint)


def load_codec_stage(settings: Settings, call: Call | None = None) -> CodecStage:
    """As the settings ask for it."""
    encoder, config, fingerprint = load_codec_encoder(settings, call)
    return CodecStage(encoder, config.codec, fingerprint, EncoderSettings.of(settings).max_chunk_frames)


def _network(settings: EncoderSettings, fingerprint: str, call: Call | None) -> Call:
    """What asks the network that is a model of this server.

    Raises:
        Unsupported: there is no server.
        CheckpointError: the network was made from another checkpoint.
    """
    if call is None:
        raise Unsupported("engine triton needs a server, and there is none here; use torch or onnx")
    if settings.network_fingerprint != fingerprint:
        raise CheckpointError(
            "engine triton: the network was made from another checkpoint than the one to be served; "
            "make the repository again with: tools/build_repository --checkpoint DIR --native-encoders onnx"
        )
    return call
