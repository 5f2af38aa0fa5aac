"""What a built repository of Qwen3-TTS can be asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tools.families.qwen3_tts.onnx_export import Loaded, compare, export_one, graphs
from tools.families.toolkit import Encoder, PythonOptions
from tools.repository_config import BuildError
from tools.steps import step
from voice_clone.families.qwen3_tts.checkpoint import Checkpoint
from voice_clone.families.qwen3_tts.networks.onnx_graphs import CODEC_ENCODER, SPEAKER_ENCODER
from voice_clone.onnx.session import Runtime

ENCODERS = ("voice_encoder",)
GRAPHS = {"voice_encoder": (SPEAKER_ENCODER, CODEC_ENCODER)}
ENGINES = dict.fromkeys(GRAPHS, ("torch", "onnx"))
PRECISIONS = PythonOptions.PRECISIONS


def encoders(checkpoint: Path) -> dict[str, tuple[Encoder, ...]]:
    """The encoders' networks, by stage.

    Raises:
        CheckpointError: the checkpoint cannot be served.
    """
    config = Checkpoint(checkpoint).config
    speaker, codec = config.speaker_encoder, config.codec
    embedding = ("speaker_embedding", "TYPE_FP32", (speaker.enc_dim,))
    codes = ("codec_codes", "TYPE_INT32", (-1, codec.encoder_valid_num_quantizers))
    networks = (
        Encoder(SPEAKER_ENCODER, speaker.sample_rate, embedding),
        Encoder(CODEC_ENCODER, codec.input_sample_rate, codes),
    )
    return {"voice_encoder": networks}


def export(checkpoint: Path, folders: Mapping[str, Path]) -> dict[str, str]:
    """Write graphs, by name, to folders, and print how they compare with torch; their fingerprints by name.

    Raises:
        CheckpointError: the checkpoint cannot be served.
        BuildError: a graph does not compute what torch does.
    """
    with step("reading the weights"):
        loaded = Loaded.of(checkpoint)
    made, fingerprints = graphs(loaded), {}
    for name, folder in folders.items():
        graph, fingerprints[name] = made[name]
        export_one(graph, folder, fingerprints[name])
        for row in compare(loaded, Runtime(folder, "cpu", threads=os.cpu_count() or 1), name):
            print(f"  {row}", flush=True)
            if not row.right:
                raise BuildError(f"the graph {name} does not compute what torch does")
    return fingerprints
