"""A clip to the artifacts of its voice, by two networks: the `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.errors import CheckpointError, Unsupported
from voice_clone.families.qwen3_tts.checkpoint import CODEC, MODEL, Checkpoint
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
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
FINGERPRINTS = ("speaker_encoder_fingerprint", "codec_encoder_fingerprint")
"""Outputs of the model. Voices in store have been made under these names."""


class Qwen3TTSEncoder:
    """Waveform to speaker embedding, float32 [size], and codec codes, int32 [frames, codebooks].

    Args:
        fingerprints: of the speaker encoder and of the codec encoder.
        max_frames: of a clip.
    """

    modes = MODES
    presets = ()

    def __init__(
        self,
        speaker_encoder: SpeakerEncoder | OnnxSpeakerEncoder | ServedSpeakerEncoder,
        codec_encoder: CodecEncoder | OnnxCodecEncoder | ServedCodecEncoder,
        config: Qwen3TTSConfig,
        fingerprints: tuple[str, str],
        max_frames: int,
    ) -> None:
        self._speaker_encoder = speaker_encoder
        self._codec_encoder = codec_encoder
        self._max_frames = max_frames
        self._size = config.speaker_encoder.enc_dim
        self._codebook_size = config.codec.decoder_config.codebook_size
        self._codebooks = config.codec.encoder_valid_num_quantizers
        self.sample_rate = config.codec.input_sample_rate
        self.fingerprints = dict(zip(FINGERPRINTS, fingerprints, strict=True))

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """Codes of the codebooks, at most as many frames as code2wav takes; no frames in mode `x_vector`."""
        return {CODES: Limit(self._codebook_size, (0, 0) if mode == "x_vector" else (1, self._max_frames))}

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """The embedding is the same in every mode; there are no codes in mode `x_vector`."""
        embedding, codes = np.zeros(self._size, np.float32), np.zeros((0, self._codebooks), np.int32)
        if waveform.size:
            clip = torch.from_numpy(waveform)
            embedding = self._speaker_encoder.embed(clip).float().cpu().numpy()
            if mode != "x_vector":
                codes = self._codec_encoder.encode(clip).cpu().numpy().astype(np.int32, copy=False)
                check_clip(len(codes), self._max_frames)
        return {EMBEDDING: embedding, CODES: codes}


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


def load_encoder(settings: Settings, call: Call | None = None) -> Qwen3TTSEncoder:
    """Both networks, as the settings ask for them."""
    speaker_encoder, config, speaker_fingerprint = load_speaker_encoder(settings, call)
    codec_encoder, _, codec_fingerprint = load_codec_encoder(settings, call)
    fingerprints = speaker_fingerprint, codec_fingerprint
    most = EncoderSettings.of(settings).max_chunk_frames
    return Qwen3TTSEncoder(speaker_encoder, codec_encoder, config, fingerprints, most)


def _network(settings: EncoderSettings, fingerprint: str, call: Call | None) -> Call:
    """What asks the network that is a model of this server.

    Raises:
        Unsupported: there is no server.
        CheckpointError: the network was made from another checkpoint.
    """
    if call is None:
        raise Unsupported("engine triton needs a server, and there is none here; use torch or onnx")
    if fingerprint not in settings.network_fingerprint.split():
        raise CheckpointError(
            "engine triton: the network was made from another checkpoint than the one to be served; "
            "make the repository again with: tools/build_repository --checkpoint DIR --native-encoders onnx"
        )
    return call
