"""The ONNX graphs of Qwen3-TTS: the speaker encoder, the codec encoder and code2wav."""

from __future__ import annotations

from pathlib import Path

from tools.families.qwen3_tts.onnx_comparison import Loaded, compare
from voice_clone.families.qwen3_tts.engines import onnx_graphs
from voice_clone.onnx.export import export
from voice_clone.onnx.session import Graph

__all__ = ["compare", "export_all", "graphs", "load"]

load = Loaded.of


def graphs(loaded: Loaded) -> dict[str, tuple[Graph, str]]:
    """Every graph of a checkpoint by its name, and the fingerprint of the stage that it is made from."""
    codebooks = loaded.config.codec.decoder_config.num_quantizers
    made = [
        (onnx_graphs.speaker_encoder(loaded.speaker_encoder), loaded.speaker_fingerprint),
        (onnx_graphs.codec_encoder(loaded.codec_encoder), loaded.codec_fingerprint),
        (onnx_graphs.code2wav_step(loaded.decoder, codebooks), loaded.decoder_fingerprint),
        (onnx_graphs.code2wav(loaded.decoder, codebooks), loaded.decoder_fingerprint),
    ]
    return {graph.name: (graph, fingerprint) for graph, fingerprint in made}


def export_all(loaded: Loaded, folder: Path) -> list[Path]:
    """Write all graphs of a checkpoint; `folder` is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    return [export(graph, folder, fingerprint) for graph, fingerprint in graphs(loaded).values()]
