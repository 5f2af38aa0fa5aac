"""What a frame costs a GPU, counted without one: kernels, bytes, and an estimate of the time.

The steps run as the server records them, at the released shapes, on the tests' device without values. Each operator
that is no view counts as one kernel, `topk` and `sort` as two; CUDA's libraries may take more. A kernel's bytes are
those of what it reads and writes; of a table that it picks rows from, those of the rows.

The estimate is no measurement. A kernel takes what its bytes take at a share of the memory's bandwidth, and not less
than a kernel of a CUDA graph takes to start and end. Both numbers are options. What it leaves out: the host, the
transfers, and the arithmetic of products, which at 64 rows still take less time than reading their weights.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from perf import report
from tests.support.pretend_gpu import pretend_gpu
from tools import guard
from tools.families.qwen3_tts.checkpoint_config import SHAPES
from tools.families.qwen3_tts.checkpoint_maker import write_configuration
from voice_clone.autoregressive.steps.frame_model import FrameModel
from voice_clone.autoregressive.steps.static_prefill import MOST_STREAMS
from voice_clone.autoregressive.steps.static_step import DRAWS, StaticStep
from voice_clone.codec.graphed_decoder import GraphedDecoder
from voice_clone.families.qwen3_tts.config import CHUNK_FRAMES, Qwen3TTSConfig, load_config
from voice_clone.families.qwen3_tts.decoder_stage import codec_format
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.layers.graphs import GraphRunner

MAX_LENGTH, PREFILL_CHUNK = 4096, 256
ROWS_ALONE = ("embedding", "index", "gather", "index_select")  # of whose first tensor a few rows are read
TWO_KERNELS = ("topk", "sort")


@dataclass
class Account:
    """Of one step.

    Attributes:
        kernels: by operator.
        bytes: of all of them, together.
        seconds: estimated.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.kernels.values())


class Counting:
    """Observes kernels; `account` begins anew with each step."""

    def __init__(self, floor: float, bandwidth: float) -> None:
        self._floor, self._bandwidth = floor, bandwidth
        self.account = Account()

    def __call__(self, operator: Any, read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        name = operator.overloadpacket.__name__
        if name in ("empty", "_unsafe_view"):  # memory alone, and a view
            return
        count = 2 if name in TWO_KERNELS else 1
        results = sum(each.nbytes for each in written)
        if name == "index_put_":
            results = 2 * read[-1].nbytes  # of the cache, the rows that are written
            read = []
        elif name in ROWS_ALONE:
            read = [*read[1:], *written]
        elif name in ("zeros", "ones", "arange", "fill_", "zero_"):
            read = []
        size = results + sum(each.nbytes for each in read)
        self.account.kernels[name] += count
        self.account.bytes += size
        self.account.seconds += max(count * self._floor, size / self._bandwidth)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="0.6b")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--length", type=int, default=512, help="positions that the talker's attention reads")
    parser.add_argument("--kernel-us", type=float, default=2.6, help="that a small kernel of a graph takes")
    parser.add_argument("--bandwidth", type=float, default=4.8e12 * 0.7, help="bytes a second that kernels reach")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with guard.temporary_folder() as scratch:
        folder = scratch / "checkpoint"
        folder.mkdir()
        write_configuration(SHAPES[given.shape], folder)
        config = load_config(folder)
    counting = Counting(1e-6 * given.kernel_us, given.bandwidth)
    with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
        frames = {batch: frame(config, batch, given.length, counting) for batch in given.batches}
        chunks = {batch: chunk(config, batch, counting) for batch in given.batches if batch <= 32}
    show(given, frames, chunks)
    report.write(
        given.json,
        {
            "shape": given.shape,
            "length": given.length,
            "estimated": True,
            "kernel_us": given.kernel_us,
            "bandwidth": given.bandwidth,
            "frames": {batch: {part: facts(each) for part, each in parts.items()} for batch, parts in frames.items()},
            "code2wav": {batch: {size: facts(each) for size, each in of.items()} for batch, of in chunks.items()},
        },
    )
    return 0


def frame(config: Qwen3TTSConfig, batch: int, length: int, counting: Counting) -> dict[str, Account]:
    """The graphs of one frame of `batch` streams, with the usual sampling, and the one that reads prompts."""
    talker = on_gpu(Talker, torch.bfloat16, config)
    runner = GraphRunner()
    model = FrameModel(talker, batch, MAX_LENGTH, idle_rows=True)
    StaticStep(model, runner, deterministic=False, prefill_chunk=PREFILL_CHUNK).prepare()
    keys = {
        "talker": ("talker", batch, length),
        "predictor": ("codes", batch, DRAWS[1]),
        "prompt": ("prompt", PREFILL_CHUNK, min(batch, MOST_STREAMS), length),
    }
    return {part: counted(runner, key, counting) for part, key in keys.items()}


def chunk(config: Qwen3TTSConfig, batch: int, counting: Counting) -> dict[int, Account]:
    """The graphs that decode one chunk each of `batch` streams, by the frames of the chunk."""
    decoder = on_gpu(CodecDecoder, torch.float32, config.codec.decoder_config)
    runner = GraphRunner()
    GraphedDecoder(decoder, codec_format(config.codec), batch, CHUNK_FRAMES, runner).prepare()
    return {frames: counted(runner, (batch, frames), counting) for frames in CHUNK_FRAMES}


def on_gpu(kind: Any, dtype: torch.dtype, *arguments: Any) -> Any:
    """A network of any weights."""
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            return kind(*arguments).requires_grad_(False)
    finally:
        torch.set_default_dtype(torch.float32)


def counted(runner: GraphRunner, key: Any, counting: Counting) -> Account:
    """One run behind a first one, in which what is kept is made."""
    step = runner._replays[key]
    step()
    account = counting.account = Account()
    step()
    counting.account = Account()
    return account


def facts(account: Account) -> dict[str, Any]:
    return {
        "kernels": account.count,
        "bytes": account.bytes,
        "estimated_ms": round(1e3 * account.seconds, 3),
        "by_operator": dict(account.kernels.most_common()),
    }


def show(given: Any, frames: dict[int, dict[str, Account]], chunks: dict[int, dict[int, Account]]) -> None:
    print(f"\n{given.shape}, {given.length} positions; estimated from {given.kernel_us} us a kernel ", end="")
    print(f"and {given.bandwidth / 1e12:.2f} TB/s, not measured\n")
    rows: list[list[Any]] = []
    for batch, parts in frames.items():
        talker, predictor, prompt = parts["talker"], parts["predictor"], parts["prompt"]
        seconds = talker.seconds + predictor.seconds
        rows.append(
            [
                batch,
                talker.count,
                predictor.count,
                (talker.bytes + predictor.bytes) / 1e9,
                1e3 * talker.seconds,
                1e3 * predictor.seconds,
                1e3 * seconds,
                batch * 0.08 / seconds,
                prompt.count,
                1e3 * prompt.seconds,
            ]
        )
    columns = ["streams", "kernels: talker", "predictor, draws", "GB", "ms: talker", "predictor, draws", "frame"]
    prompts = [f"kernels: {PREFILL_CHUNK} positions of prompts", "ms"]
    print(report.table([*columns, "audio s a second", *prompts], rows))
    lines = [
        [batch, size, account.count, account.bytes / 1e9, 1e3 * account.seconds]
        for batch, of in chunks.items()
        for size, account in of.items()
    ]
    print("\ncode2wav, fp32; the arithmetic of its convolutions is not in the estimate\n")
    print(report.table(["streams", "frames", "kernels", "GB", "ms"], lines))


if __name__ == "__main__":
    sys.exit(main())
