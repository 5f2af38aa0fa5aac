"""Writes the speaker encoder, the codec encoder and code2wav as ONNX graphs, and compares each with torch.

The models use them with the setting `engine` = `onnx`. A graph belongs to its checkpoint and to this version: another
one is refused when a model loads.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tools.families.qwen3_tts.onnx_comparison import TOLERANCE, Loaded, compare
from voice_clone.errors import VoiceCloneError
from voice_clone.families.qwen3_tts.engines import onnx_graphs
from voice_clone.onnx.export import OPSET, export
from voice_clone.onnx.graph import Graph
from voice_clone.onnx.session import ONNX_RUNTIME, Runtime


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


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/export_onnx", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the official checkpoint")
    parser.add_argument("--output", type=Path, help="folder of the graphs (default: onnx in the checkpoint's folder)")
    arguments = parser.parse_args()
    folder = arguments.output or arguments.checkpoint / "onnx"
    began = time.monotonic()
    try:
        loaded = Loaded.of(arguments.checkpoint)
        files = export_all(loaded, folder)
    except VoiceCloneError as error:
        parser.error(str(error))
    print(f"opset {OPSET}, checked, in {time.monotonic() - began:.0f} s:")
    for file in files:
        size = sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))
        print(f"  {file}  {size / 1e6:.0f} MB")
    print(f"\nCompared with torch, on ONNX Runtime {ONNX_RUNTIME}, CPU:")
    wrong = False
    for row in compare(loaded, Runtime(folder, "cpu", threads=2)):
        print(f"  {row}", flush=True)
        wrong |= not row.right
    if wrong:
        print(f"\nA graph does not compute what torch does: at most {TOLERANCE:g}, and equal codes.", file=sys.stderr)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
