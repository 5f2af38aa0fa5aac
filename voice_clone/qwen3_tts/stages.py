"""Loads the network of one stage, and nothing of the others, as the settings ask for it."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from voice_clone.qwen3_tts.checkpoint import Checkpoint, WeightFile
from voice_clone.qwen3_tts.codec_decoder import CodecDecoder
from voice_clone.qwen3_tts.codec_encoder import CodecEncoder
from voice_clone.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.qwen3_tts.generator import Generator
from voice_clone.qwen3_tts.speaker_encoder import SpeakerEncoder
from voice_clone.qwen3_tts.talker import Talker
from voice_clone.settings import Settings

M = TypeVar("M", bound=nn.Module)

MODEL: WeightFile = "model"
CODEC: WeightFile = "speech_tokenizer/model"
TEXT_EMBEDDING = "model.text_embedding.weight"  # 151,936 rows, of which a prompt needs a few: it stays in the file


def load_speaker_encoder(settings: Settings) -> tuple[SpeakerEncoder, Qwen3TTSConfig, str]:
    """The speaker encoder, the configuration and the encoder's fingerprint."""
    checkpoint = Checkpoint(settings.checkpoint_dir)
    with torch.device("meta"):
        encoder = SpeakerEncoder(checkpoint.config.speaker_encoder)
    _fill(checkpoint, encoder, MODEL, "speaker_encoder.", settings)
    return encoder, checkpoint.config, checkpoint.fingerprint(MODEL, "speaker_encoder.", list(encoder.state_dict()))


def load_codec_encoder(settings: Settings) -> tuple[CodecEncoder, Qwen3TTSConfig, str]:
    """The codec encoder, the configuration and the encoder's fingerprint."""
    checkpoint = Checkpoint(settings.checkpoint_dir)
    codec = checkpoint.config.codec
    with torch.device("meta"):
        encoder = CodecEncoder(codec.encoder_config, codec.encoder_valid_num_quantizers)
    _fill(checkpoint, encoder, CODEC, "encoder.", settings)
    return encoder, checkpoint.config, checkpoint.fingerprint(CODEC, "encoder.", list(encoder.state_dict()))


def load_codec_decoder(settings: Settings) -> tuple[CodecDecoder, Qwen3TTSConfig]:
    """The codec decoder and the configuration."""
    checkpoint = Checkpoint(settings.checkpoint_dir)
    with torch.device("meta"):
        decoder = CodecDecoder(checkpoint.config.codec.decoder_config)
    return _fill(checkpoint, decoder, CODEC, "decoder.", settings), checkpoint.config


def load_talker(settings: Settings) -> tuple[Talker, Qwen3TTSConfig]:
    """The talker with its code predictor, and the configuration."""
    checkpoint = Checkpoint(settings.checkpoint_dir)
    with torch.device("meta"):
        talker = Talker(checkpoint.config.talker)
    return _fill(checkpoint, talker, MODEL, "talker.", settings, keep=(TEXT_EMBEDDING,)), checkpoint.config


def load_generator(settings: Settings) -> Generator:
    """The talker with the memory of its streams."""
    talker, config = load_talker(settings)
    runaway_frames = None
    if settings.text("runaway_seconds"):
        frame_rate = config.codec.output_sample_rate / config.codec.decode_upsample_rate
        runaway_frames = max(1, round(settings.number("runaway_seconds", 1.0) * frame_rate))
    return Generator(
        talker,
        config,
        slots=settings.integer("max_streams", 8),
        max_length=settings.integer("max_length", 4096),
        deterministic=settings.choice("deterministic", ("false", "true")) == "true",
        runaway_frames=runaway_frames,
    )


def prefill_chunk(settings: Settings) -> int:
    """Positions of a prompt that the talker reads between two steps; by default what takes about one step's time."""
    return settings.integer("prefill_chunk", 256 if _device(settings) == "cuda" else 32)


def _device(settings: Settings) -> str:
    kind = settings.choice("device", ("auto", "cpu", "cuda"))
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    return kind


def _fill(
    checkpoint: Checkpoint, module: M, file: WeightFile, prefix: str, settings: Settings, keep: tuple[str, ...] = ()
) -> M:
    kind = _device(settings)
    name = settings.choice("dtype", ("auto", "float32", "bfloat16"))
    if name == "auto":
        name = "bfloat16" if kind == "cuda" else "float32"
    checkpoint.load(module, file, prefix, getattr(torch, name), torch.device(kind), keep)
    return module.eval().requires_grad_(False)
