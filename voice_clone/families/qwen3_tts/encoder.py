"""A clip to the artifacts of its voice, by two networks: the `voice_clone.stages.protocols.EncoderStage`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from voice_clone import compute
from voice_clone.array_kinds import Numbers, on_host
from voice_clone.errors import CheckpointError, Unsupported
from voice_clone.families.qwen3_tts.checkpoint import CODEC, MODEL, Checkpoint
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.family import BASE
from voice_clone.families.qwen3_tts.networks.served_encoders import ServedCodecEncoder, ServedSpeakerEncoder
from voice_clone.families.qwen3_tts.prompt import CODES, EMBEDDING
from voice_clone.mapped_weights import MappedWeights
from voice_clone.settings import EncoderSettings, Settings
from voice_clone.stages.protocols import Arrays, Call, Limit, check_clip

if TYPE_CHECKING:  # native code does without torch
    from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
    from voice_clone.families.qwen3_tts.networks.native_codec_encoder import NativeCodecEncoder
    from voice_clone.families.qwen3_tts.networks.native_speaker_encoder import NativeSpeakerEncoder
    from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
    from voice_clone.native.arrays import Array

log = logging.getLogger(__name__)

GONE = ("engine", "onnx_dir")  # settings of before
_SPEAKER, _CODEC = "speaker_encoder.", "encoder."  # prefixes of the encoders' tensors


class AnySpeakerEncoder(Protocol):
    """A speaker encoder, whatever computes it."""

    def embed(self, waveform: Numbers) -> Numbers:
        """As of `SpeakerEncoder`."""


class AnyCodecEncoder(Protocol):
    """A codec encoder, whatever computes it."""

    def encode(self, waveform: Numbers) -> Numbers:
        """As of `CodecEncoder`."""


class Qwen3TTSEncoder:
    """Waveform to speaker embedding, float32 [size], and codec codes, int32 [frames, codebooks].

    Args:
        fingerprints: of the speaker encoder and of the codec encoder.
        max_frames: of a clip.
    """

    modes = BASE.modes
    presets = ()

    def __init__(
        self,
        speaker_encoder: AnySpeakerEncoder,
        codec_encoder: AnyCodecEncoder,
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
        self.fingerprints = dict(zip(BASE.fingerprints, fingerprints, strict=True))

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """Codes of the codebooks, at most as many frames as code2wav takes; no frames in mode `x_vector`."""
        return {CODES: Limit(self._codebook_size, (0, 0) if mode == "x_vector" else (1, self._max_frames))}

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        """The embedding is the same in every mode; there are no codes in mode `x_vector`."""
        embedding, codes = np.zeros(self._size, np.float32), np.zeros((0, self._codebooks), np.int32)
        if waveform.size:
            embedding = on_host(self._speaker_encoder.embed(waveform))
            if mode != "x_vector":
                codes = on_host(self._codec_encoder.encode(waveform)).astype(np.int32)
                check_clip(len(codes), self._max_frames)
        return {EMBEDDING: embedding, CODES: codes}


def load_speaker_encoder(given: Settings, call: Call | None = None) -> tuple[AnySpeakerEncoder, Qwen3TTSConfig, str]:
    """The speaker encoder, the configuration, and the encoder's fingerprint.

    It is native code on a CPU, and torch on a GPU; with `network_fingerprint` a model of the server that is asked. The
    fingerprint does not depend on that: all give the same codes, but for vectors that are equally near, and embeddings
    that differ by rounding. So a voice that was registered with one serves the other.

    Args:
        call: asks other models of the server.
    """
    settings = EncoderSettings.of(given)
    checkpoint = _base_checkpoint(settings)
    config = checkpoint.config
    if settings.network_fingerprint:
        fingerprint = _speaker_fingerprint(checkpoint)
        served = ServedSpeakerEncoder(_network(settings, fingerprint, call), config.speaker_encoder)
        return served, config, fingerprint
    if compute.device(settings) == "cpu":
        native, fingerprint = _native_speaker_encoder(checkpoint)
        return native, config, fingerprint
    return load_torch_speaker_encoder(given)


def load_codec_encoder(given: Settings, call: Call | None = None) -> tuple[AnyCodecEncoder, Qwen3TTSConfig, str]:
    """The codec encoder, the configuration, and the encoder's fingerprint; as `load_speaker_encoder`."""
    settings = EncoderSettings.of(given)
    checkpoint = _base_checkpoint(settings)
    config = checkpoint.config
    if settings.network_fingerprint:
        fingerprint = _codec_fingerprint(checkpoint)
        return ServedCodecEncoder(_network(settings, fingerprint, call), config.codec), config, fingerprint
    if compute.device(settings) == "cpu":
        native, fingerprint = _native_codec_encoder(settings, checkpoint)
        return native, config, fingerprint
    return load_torch_codec_encoder(given)


def load_torch_speaker_encoder(given: Settings) -> tuple[SpeakerEncoder, Qwen3TTSConfig, str]:
    """The speaker encoder as torch's network on any device; as `load_speaker_encoder`."""
    from voice_clone.stages.loading import load_encoder_network

    settings = EncoderSettings.of(given)
    checkpoint = _base_checkpoint(settings)
    network = load_encoder_network(settings, _empty_speaker_encoder(checkpoint), checkpoint, MODEL, _SPEAKER)
    return network, checkpoint.config, _speaker_fingerprint(checkpoint)


def load_torch_codec_encoder(given: Settings) -> tuple[CodecEncoder, Qwen3TTSConfig, str]:
    """The codec encoder as torch's network on any device; as `load_speaker_encoder`."""
    from voice_clone.stages.loading import load_encoder_network

    settings = EncoderSettings.of(given)
    checkpoint = _base_checkpoint(settings)
    network = load_encoder_network(settings, _empty_codec_encoder(checkpoint), checkpoint, CODEC, _CODEC)
    return network, checkpoint.config, _codec_fingerprint(checkpoint)


def load_encoder(settings: Settings, call: Call | None = None) -> Qwen3TTSEncoder:
    """Both networks, as the settings ask for them. The log names settings that are gone."""
    for name in GONE:
        if settings.text(name) not in ("", "torch", "triton"):
            log.warning("the setting %s is gone, because a CPU now computes the encoders natively; leave it out", name)
    speaker_encoder, config, speaker_fingerprint = load_speaker_encoder(settings, call)
    codec_encoder, _, codec_fingerprint = load_codec_encoder(settings, call)
    fingerprints = speaker_fingerprint, codec_fingerprint
    most = EncoderSettings.of(settings).max_chunk_frames
    return Qwen3TTSEncoder(speaker_encoder, codec_encoder, config, fingerprints, most)


def _base_checkpoint(settings: EncoderSettings) -> Checkpoint:
    checkpoint = Checkpoint(settings.checkpoint_dir)
    if checkpoint.config.kind != "base":
        raise CheckpointError(f"this is no Base checkpoint; serve it as qwen3_tts_{checkpoint.config.kind}")
    return checkpoint


def _empty_speaker_encoder(checkpoint: Checkpoint) -> SpeakerEncoder:
    from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
    from voice_clone.stages.loading import empty

    return empty(lambda: SpeakerEncoder(checkpoint.config.speaker_encoder))


def _empty_codec_encoder(checkpoint: Checkpoint) -> CodecEncoder:
    from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
    from voice_clone.stages.loading import empty

    codec = checkpoint.config.codec
    return empty(lambda: CodecEncoder(codec.encoder_config, codec.encoder_valid_num_quantizers))


def _speaker_fingerprint(checkpoint: Checkpoint) -> str:
    return checkpoint.stage_fingerprint(MODEL, _SPEAKER, list(_empty_speaker_encoder(checkpoint).state_dict()))


def _codec_fingerprint(checkpoint: Checkpoint) -> str:
    return checkpoint.stage_fingerprint(CODEC, _CODEC, list(_empty_codec_encoder(checkpoint).state_dict()))


def _native_speaker_encoder(checkpoint: Checkpoint) -> tuple[NativeSpeakerEncoder, str]:
    """The encoder and its fingerprint, which is that of all tensors that it reads."""
    from voice_clone.families.qwen3_tts.networks.native_speaker_encoder import NativeSpeakerEncoder

    weights, names = MappedWeights(checkpoint.folder, MODEL), []

    def read(name: str, shape: tuple[int, ...]) -> Array:
        names.append(name)
        return weights.read(_SPEAKER + name, shape)

    encoder = NativeSpeakerEncoder(checkpoint.config.speaker_encoder, read)
    return encoder, checkpoint.stage_fingerprint(MODEL, _SPEAKER, names)


def _native_codec_encoder(settings: EncoderSettings, checkpoint: Checkpoint) -> tuple[NativeCodecEncoder, str]:
    """The encoder and its fingerprint. Weights are packed where they are not found packed."""
    from voice_clone.families.qwen3_tts.networks.codec_encoder_parts import parts_of
    from voice_clone.families.qwen3_tts.networks.native_codec_encoder import NativeCodecEncoder
    from voice_clone.native.thread_pool import leave_threads_to_native_code

    codec = checkpoint.config.codec
    packed = compute.packed_file(settings, "qwen3_tts codec encoder", checkpoint.identity(CODEC), codec, any_size=True)
    weights, names = MappedWeights(checkpoint.folder, CODEC), []

    def read(name: str, shape: tuple[int, ...]) -> Array:
        names.append(name)
        return weights.read(_CODEC + name, shape)

    def fingerprint() -> list[Array]:
        return [np.frombuffer(checkpoint.stage_fingerprint(CODEC, _CODEC, names).encode(), np.uint8)]

    parts = parts_of(codec.encoder_config, codec.encoder_valid_num_quantizers, read)
    encoder = NativeCodecEncoder(codec.encoder_config, lambda name: packed.part(name)(parts[name]))
    [text] = packed.part("fingerprint")(fingerprint)
    leave_threads_to_native_code()
    if not packed.found:
        encoder.encode(np.zeros(1, np.float32))  # compiles it, which an earlier process has where weights are found
    packed.keep()
    return encoder, text.tobytes().decode()


def _network(settings: EncoderSettings, fingerprint: str, call: Call | None) -> Call:
    """What asks the network that is a model of this server.

    Raises:
        Unsupported: there is no server.
        CheckpointError: the network was made from another checkpoint.
    """
    if call is None:
        raise Unsupported("network_fingerprint is set: the networks are models of a server, and there is none here")
    if fingerprint not in settings.network_fingerprint.split():
        raise CheckpointError(
            "network_fingerprint: the network was made from another checkpoint than the one to be served; "
            "make the repository again: voice-clone-server build-repository --checkpoint DIR --native-encoders onnx"
        )
    return call
