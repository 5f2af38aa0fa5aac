"""Loads the network of one stage, and nothing of the others, as the settings ask for it."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from voice_clone.autoregressive.generator import Generator
from voice_clone.checkpoint import Checkpoint, WeightFile
from voice_clone.codec.graphed_decoder import GraphedCodecDecoder
from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.engines.onnx_stages import OnnxCodecDecoder, OnnxCodecEncoder, OnnxSpeakerEncoder
from voice_clone.families.qwen3_tts.engines.served_stages import Call, ServedCodecEncoder, ServedSpeakerEncoder
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.native_decoder import NativeCodecDecoder
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.layers.graphs import GraphRunner
from voice_clone.native.matrix.weights import PRECISIONS, Precision
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.onnx.session import Runtime
from voice_clone.settings import Settings

M = TypeVar("M", bound=nn.Module)

MODEL: WeightFile = "model"
CODEC: WeightFile = "speech_tokenizer/model"
CHUNK_FRAMES = (1, 2, 4, 8, 12)  # of a stream's chunks; the last repeats
TEXT_EMBEDDING = "model.text_embedding.weight"  # 151,936 rows, of which a prompt needs a few: it stays in the file


def load_speaker_encoder(
    settings: Settings, call: Call | None = None
) -> tuple[SpeakerEncoder | OnnxSpeakerEncoder | ServedSpeakerEncoder, Qwen3TTSConfig, str]:
    """The speaker encoder on its engine, the configuration and the encoder's fingerprint.

    A fingerprint does not depend on the engine: all give the same codes, and embeddings that differ by rounding, so a
    voice that was registered with one serves the other.

    Args:
        call: asks other models of the server; engine triton needs it.
    """
    checkpoint = Checkpoint(settings.checkpoint_dir)
    with torch.device("meta"):
        encoder = SpeakerEncoder(checkpoint.config.speaker_encoder)
    fingerprint = checkpoint.fingerprint(MODEL, "speaker_encoder.", list(encoder.state_dict()))
    engine = _encoder_engine(settings)
    if engine == "triton":
        return ServedSpeakerEncoder(_network(settings, fingerprint, call), encoder), checkpoint.config, fingerprint
    if engine == "onnx":
        return OnnxSpeakerEncoder(_runtime(settings), fingerprint, encoder), checkpoint.config, fingerprint
    return _fill(checkpoint, encoder, MODEL, "speaker_encoder.", settings), checkpoint.config, fingerprint


def load_codec_encoder(
    settings: Settings, call: Call | None = None
) -> tuple[CodecEncoder | OnnxCodecEncoder | ServedCodecEncoder, Qwen3TTSConfig, str]:
    """The codec encoder on its engine, the configuration and the encoder's fingerprint; as `load_speaker_encoder`."""
    checkpoint = Checkpoint(settings.checkpoint_dir)
    codec = checkpoint.config.codec
    with torch.device("meta"):
        encoder = CodecEncoder(codec.encoder_config, codec.encoder_valid_num_quantizers)
    fingerprint = checkpoint.fingerprint(CODEC, "encoder.", list(encoder.state_dict()))
    engine = _encoder_engine(settings)
    if engine == "triton":
        return ServedCodecEncoder(_network(settings, fingerprint, call), codec), checkpoint.config, fingerprint
    if engine == "onnx":
        return OnnxCodecEncoder(_runtime(settings), fingerprint, codec), checkpoint.config, fingerprint
    return _fill(checkpoint, encoder, CODEC, "encoder.", settings), checkpoint.config, fingerprint


def load_codec_decoder(
    settings: Settings,
) -> tuple[CodecDecoder | GraphedCodecDecoder | NativeCodecDecoder | OnnxCodecDecoder, Qwen3TTSConfig]:
    """The codec decoder on its engine and the configuration. Engine torch: on a GPU in CUDA graphs, on a CPU native."""
    if settings.choice("engine", ("torch", "onnx")) == "onnx":
        checkpoint = Checkpoint(settings.checkpoint_dir)
        codec = checkpoint.config.codec
        with torch.device("meta"):
            empty = CodecDecoder(codec.decoder_config)
        fingerprint = decoder_fingerprint(checkpoint, empty)
        return OnnxCodecDecoder(_runtime(settings), fingerprint, empty, codec), checkpoint.config
    decoder, config = load_torch_decoder(settings)
    if _wants_graphs(settings):
        frames, runner = settings.integers("chunk_frames", CHUNK_FRAMES), GraphRunner.on(decoder.device)
        books = config.codec.decoder_config.num_quantizers
        graphed = GraphedCodecDecoder(decoder, books, max_decode_batch(settings), frames, runner)
        graphed.prepare()
        return graphed, config
    if _device(settings) == "cpu":
        native = NativeCodecDecoder(decoder)
        leave_threads_to_native_code()
        return native, config
    return decoder, config


def load_torch_decoder(settings: Settings) -> tuple[CodecDecoder, Qwen3TTSConfig]:
    """The codec decoder as torch's network and the configuration; what `load_codec_decoder` serves is made of it."""
    checkpoint = Checkpoint(settings.checkpoint_dir)
    with torch.device("meta"):
        decoder = CodecDecoder(checkpoint.config.codec.decoder_config)
    return _fill(checkpoint, decoder, CODEC, "decoder.", settings), checkpoint.config


def max_decode_batch(settings: Settings) -> int:
    """Chunks decoded together. A CPU gains little from a batch, and its first stream waits for its last."""
    return settings.integer("max_decode_batch", 32 if _device(settings) == "cuda" else 4)


def decoder_fingerprint(checkpoint: Checkpoint, decoder: CodecDecoder) -> str:
    """As `Checkpoint.fingerprint`, of the codec decoder."""
    return checkpoint.fingerprint(CODEC, "decoder.", list(decoder.state_dict()))


def load_talker(settings: Settings) -> tuple[Talker, Qwen3TTSConfig]:
    """The talker with its code predictor, at its precision, and the configuration."""
    checkpoint = Checkpoint(settings.checkpoint_dir)
    with torch.device("meta"):
        talker = Talker(checkpoint.config.talker)
    _fill(checkpoint, talker, MODEL, "talker.", settings, keep=(TEXT_EMBEDDING,))
    if _device(settings) == "cpu":
        talker.to_native(_precision(settings))
    return talker, checkpoint.config


def load_generator(settings: Settings) -> Generator:
    """The talker with the memory of its streams."""
    talker, config = load_talker(settings)
    if talker.native is not None:
        leave_threads_to_native_code()
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
        runner=GraphRunner.on(talker.device) if _wants_graphs(settings) else None,
        prefix_bytes=settings.integer("prefix_bytes", 128 << 20),
    )


def use_threads(settings: Settings, share: int = 1) -> None:
    """How many threads this process computes with, whatever the engine; by default one `share`-th of what it may have.

    code2wav takes half: the talker waits for memory most of the time, and both are at work at the same time.
    """
    torch.set_num_threads(settings.integer("threads", max(1, torch.get_num_threads() // share)))


def prefill_chunk(settings: Settings) -> int:
    """Positions of a prompt that the talker reads between two steps; by default what takes about one step's time."""
    return settings.integer("prefill_chunk", 256 if _device(settings) == "cuda" else 32)


def encoder_threads(settings: Settings) -> int:
    """Requests that an encoder works on at once; 0: one after the other, in its `execute`.

    A network of its own gets several to batch; one in this process serves one at a time.
    """
    return 8 if _encoder_engine(settings) == "triton" else 0


def _encoder_engine(settings: Settings) -> str:
    return settings.choice("engine", ("torch", "onnx", "triton"))


def _network(settings: Settings, fingerprint: str, call: Call | None) -> Call:
    """How to ask the network that the server has as a model; it must be that of this checkpoint."""
    if call is None:
        raise Unsupported("engine triton needs a server, and there is none here; use torch or onnx")
    if settings.text("network_fingerprint") != fingerprint:
        raise CheckpointError(
            "engine triton: the network was made from another checkpoint than the one to be served; "
            "make the repository anew with: tools/build_repository --checkpoint DIR --native-encoders onnx"
        )
    return call


def _runtime(settings: Settings) -> Runtime:
    return Runtime.of(settings, _device(settings))


def _device(settings: Settings) -> str:
    kind = settings.choice("device", ("auto", "cpu", "cuda"))
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    return kind


def _wants_graphs(settings: Settings) -> bool:
    return settings.choice("cuda_graphs", ("true", "false")) == "true" and _device(settings) == "cuda"


def _precision(settings: Settings) -> Precision:
    cuda = _device(settings) == "cuda"
    choices: dict[str, Precision] = {"auto": "bf16" if cuda else "fp32", **{name: name for name in PRECISIONS}}
    precision = choices[settings.choice("precision", tuple(choices))]
    if precision in ("int8", "int4") and cuda:
        raise InvalidArgument(f"precision {precision} is for CPUs; a GPU takes fp32 or bf16")
    return precision


def _fill(
    checkpoint: Checkpoint, module: M, file: WeightFile, prefix: str, settings: Settings, keep: tuple[str, ...] = ()
) -> M:
    # A CPU computes in fp32 at any precision; what is less is how the talker keeps its weights.
    dtype = torch.bfloat16 if _device(settings) == "cuda" and _precision(settings) == "bf16" else torch.float32
    checkpoint.load(module, file, prefix, dtype, torch.device(_device(settings)), keep)
    return module.eval().requires_grad_(False)
