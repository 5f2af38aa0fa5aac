"""What a built repository of Qwen3-TTS can be asked for, and the ONNX graphs of its encoders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from voice_clone.families.qwen3_tts.checkpoint import Checkpoint
from voice_clone.families.qwen3_tts.encoder import load_torch_codec_encoder, load_torch_speaker_encoder
from voice_clone.families.qwen3_tts.networks.onnx_graphs import (
    CODEC_ENCODER,
    SPEAKER_ENCODER,
    codec_encoder,
    speaker_encoder,
)
from voice_clone.onnx.export import Graph
from voice_clone.onnx.export import export as write
from voice_clone.settings import Settings
from voice_clone_server.families.operating import EncoderGraph, PythonOptions
from voice_clone_server.steps import step

ENCODERS = ("voice_encoder",)
PRECISIONS = PythonOptions.PRECISIONS


def encoders(checkpoint: Path) -> dict[str, tuple[EncoderGraph, ...]]:
    """The encoders' networks, by stage.

    Raises:
        CheckpointError: the checkpoint cannot be served.
    """
    config = Checkpoint(checkpoint).config
    speaker, codec = config.speaker_encoder, config.codec
    embedding = ("speaker_embedding", "TYPE_FP32", (speaker.enc_dim,))
    codes = ("codec_codes", "TYPE_INT32", (-1, codec.encoder_valid_num_quantizers))
    networks = (
        EncoderGraph(SPEAKER_ENCODER, speaker.sample_rate, embedding),
        EncoderGraph(CODEC_ENCODER, codec.input_sample_rate, codes),
    )
    return {"voice_encoder": networks}


def export(checkpoint: Path, folders: Mapping[str, Path]) -> dict[str, str]:
    """Write graphs, by name, to folders; their fingerprints by name.

    Raises:
        CheckpointError: the checkpoint cannot be served.
    """
    with step("reading the weights"):
        made = graphs(checkpoint)
    for name, folder in folders.items():
        with step(f"exporting {name}"):
            write(made[name][0], folder)
    return {name: made[name][1] for name in folders}


def graphs(checkpoint: Path) -> dict[str, tuple[Graph, str]]:
    """Every graph of a checkpoint by its name, and the fingerprint of the network that it is made from.

    Raises:
        CheckpointError: the checkpoint cannot be served.
    """
    settings = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint), "VOICE_CLONE_DEVICE": "cpu"})
    speaker, _, of_speaker = load_torch_speaker_encoder(settings)
    codec, _, of_codec = load_torch_codec_encoder(settings)
    return {SPEAKER_ENCODER: (speaker_encoder(speaker), of_speaker), CODEC_ENCODER: (codec_encoder(codec), of_codec)}
