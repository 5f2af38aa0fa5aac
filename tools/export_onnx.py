"""Writes networks of a checkpoint as ONNX graphs, and compares each with torch.

The models use them with the setting `engine` = `onnx`. A graph belongs to its checkpoint and to this version: a model
refuses another one when it loads.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import onnxruntime
from voice_clone_client._arguments import Parser

from tools.families.recognition import FamilyError, family_of
from tools.families.toolkit import families_with, onnx_exporter
from tools.new_folder import new_files
from tools.preflight import check_checkpoints
from tools.steps import step
from tools.triton_server import MODELS
from voice_clone.errors import VoiceCloneError
from voice_clone.onnx.export import OPSET
from voice_clone.onnx.session import Runtime


def main() -> int:
    """The command line."""
    parser = Parser(prog="tools/export_onnx", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--output", type=Path, help="folder of the graphs (default: onnx in the checkpoint's folder)")
    arguments = parser.parse_args()
    folder = arguments.output or arguments.checkpoint / "onnx"
    began = time.monotonic()
    try:
        family = family_of(arguments.checkpoint, [MODELS])
        check_checkpoints({family: arguments.checkpoint}, [MODELS])
        if family not in families_with("onnx_export"):
            parser.error(f"{family} has no ONNX graphs")
        exporter = onnx_exporter(family)
        with step("reading the weights"):
            loaded = exporter.load(arguments.checkpoint)
        with new_files(folder) as scratch:
            names = [file.name for file in exporter.export_all(loaded, scratch)]
    except BrokenPipeError:
        raise  # of the output: tools/run.py
    except (FamilyError, VoiceCloneError, OSError) as error:
        print(f"tools/export_onnx: {error}", file=sys.stderr)
        return 1
    print(f"opset {OPSET}, checked, in {time.monotonic() - began:.0f} s:")
    for name in names:
        size = sum(part.stat().st_size for part in folder.glob(f"{name}*"))
        print(f"  {folder / name}  {size / 1e6:.0f} MB")
    print(f"\nCompared with torch, on ONNX Runtime {onnxruntime.__version__}, CPU:")
    wrong = False
    for row in exporter.compare(loaded, Runtime(folder, "cpu", threads=2)):
        print(f"  {row}", flush=True)
        wrong |= not row.right
    if wrong:
        print("\nA graph marked WRONG does not compute what torch does.", file=sys.stderr)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
