"""What a frame costs a GPU, counted without one: kernels, bytes, and an estimate of the time.

The steps run as the server records them, at the released shapes, on the tests' device without values. Each operator
that is no view counts as one kernel, `topk` and `sort` as two; CUDA's libraries may take more. So do the copies and
conversions of masks that torch makes on a GPU of its own accord. A kernel's bytes are those of what it reads and
writes; of a table that it picks rows from, those of the rows.

The estimate is no measurement. A kernel takes the longest of three: what its bytes take, what its arithmetic takes,
both at a share of the GPU's peaks, and what a kernel of a CUDA graph takes to start and end. The numbers are options.
Attention takes a guess by its positions (kernel_account.py). What is left out: the host and the transfers. The sum
assumes that talker and code2wav, which are two processes, take turns on the GPU.

At the end stands what the host launches itself: graphs, and the copies and kernels around them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from perf.bench import report
from perf.bench.families import FAMILIES
from perf.bench.families.family import Family, Networks
from perf.on_gpu.kernel_account import Account, Counting
from perf.on_gpu.pretend_gpu import PretendGPU, pretend_gpu
from voice_clone.autoregressive.frame_head import Row
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.static_step import MOST_STREAMS, StaticStep
from voice_clone.autoregressive.steps import FrameModel
from voice_clone.codec.graphed_streams import GraphedStreams, Graphs
from voice_clone.layers.graphs import GraphRunner
from voice_clone_server import guard

MAX_LENGTH, PREFILL_CHUNK = 4096, 256
TOGETHER = 32  # chunks that code2wav decodes at once
WAYS = ("fp32", "tf32", "bf16")  # of the decoder
SETTINGS = ("family", "shape", "length", "kernel_us", "bandwidth", "share")  # that the result file has


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="perf/kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=tuple(FAMILIES), default="qwen3_tts")
    parser.add_argument("--shape", help="by default the released one: 0.6b, s2-pro, 4b-encoder, 2b")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--length", type=int, default=512, help="positions that the talker's attention reads")
    parser.add_argument("--kernel-us", type=float, default=2.6, help="that a small kernel of a graph takes")
    parser.add_argument("--bandwidth", type=float, default=4.8, help="TB/s, the peak of the GPU's memory (an H200's)")
    for way, peak in (("fp32", 67.0), ("tf32", 494.0), ("bf16", 989.0)):
        parser.add_argument(f"--{way}", type=float, default=peak, help="TFLOP/s, the peak of its arithmetic")
    parser.add_argument("--share", type=float, default=0.7, help="of the peaks that kernels reach")
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    family = FAMILIES[given.family]
    given.shape = family.shape_of(given.shape, parser)
    with guard.temporary_folder() as scratch:
        networks = family.networks(given.shape, scratch)
    rates = {way: 1e12 * given.share * getattr(given, way) for way in WAYS}
    dtypes = {torch.bfloat16: rates["bf16"], torch.float32: rates["fp32"], torch.float64: rates["fp32"]}
    counting = Counting(1e-6 * given.kernel_us, 1e12 * given.share * given.bandwidth, dtypes)
    with pretend_gpu(empty=True, observer=counting) as gpu, torch.inference_mode():
        frames = {batch: frame(family, networks, batch, given.length, counting) for batch in given.batches}
        sizes = sorted({min(batch, TOGETHER) for batch in given.batches})
        chunks = {
            way: {batch: chunk(family, networks, batch, counting, way, rates[way]) for batch in sizes} for way in WAYS
        }
        launched = {batch: launches(family, networks, batch, gpu) for batch in sizes}
    seconds = networks.form.frame_seconds
    sums = together(frames, chunks, seconds)
    show(given, seconds, frames, chunks, sums)
    print("\nWhat the host launches, graphs included\n")
    columns = ["streams", "a frame of the talker", "a chunk of code2wav", "one more stream in code2wav"]
    print(report.table(columns, [[batch, *each.values()] for batch, each in launched.items()]))
    report.write(
        given.output,
        {
            **{name: getattr(given, name) for name in (*SETTINGS, *WAYS)},
            "estimated": True,
            "frames": {batch: {part: facts(each) for part, each in parts.items()} for batch, parts in frames.items()},
            "code2wav": {
                way: {batch: {size: facts(each) for size, each in of.items()} for batch, of in batches.items()}
                for way, batches in chunks.items()
            },
            "together": sums,
            "launches": launched,
        },
    )
    return 0


def frame(family: type[Family], networks: Networks, batch: int, length: int, counting: Counting) -> dict[str, Account]:
    """The graphs of one frame of `batch` streams, with the usual sampling, and the one that reads prompts."""
    talker = talker_on_gpu(networks)
    drawn = talker.head.variant_of(talker.head.columns(family.sampling(drawn=True))[None])
    for stack in talker.stack.modules():  # as a server finds them where torch has that
        if isinstance(stack, DecoderStack):
            stack.varlen = True
    counting.positions = length
    runner = GraphRunner()
    model = FrameModel(talker, batch, MAX_LENGTH, idle_rows=True)
    StaticStep(model, runner, deterministic=False, prefill_chunk=PREFILL_CHUNK).prepare()
    keys = {
        "talker": ("talker", batch, MAX_LENGTH),
        "predictor": ("frames", batch, next(variant for variant in talker.head.variants if variant.covers(drawn))),
        "prompt": ("prompt", PREFILL_CHUNK, min(batch, MOST_STREAMS), MAX_LENGTH),
    }
    return {part: counted(runner, key, counting) for part, key in keys.items()}


def chunk(
    family: type[Family], networks: Networks, batch: int, counting: Counting, way: str, rate: float
) -> dict[int, Account]:
    """The graphs that decode one chunk each of `batch` streams, by the frames of the chunk.

    Args:
        way: of `WAYS`.
        rate: of its arithmetic.
    """
    dtype = torch.bfloat16 if way == "bf16" else torch.float32
    decoder = on_gpu(networks.decoder, dtype)
    runner = GraphRunner()
    GraphedStreams(decoder, networks.form, Graphs(runner, batch, family.chunk_frames), most=batch).prepare()
    before, counting.rates[dtype] = counting.rates[dtype], rate
    found = {frames: counted(runner, (batch, frames), counting) for frames in family.chunk_frames}
    counting.rates[dtype] = before
    return found


def launches(family: type[Family], networks: Networks, batch: int, gpu: PretendGPU) -> dict[str, int]:
    """How often the host starts something: a frame, a chunk in one piece, and what a stream begins with."""
    runner = GraphRunner(lambda step: lambda: None)  # a graph is one launch, and starts its kernels itself
    talker, decoder = talker_on_gpu(networks), on_gpu(networks.decoder, torch.float32)
    model = FrameModel(talker, batch, MAX_LENGTH, idle_rows=True)
    step = StaticStep(model, runner, deterministic=False, prefill_chunk=PREFILL_CHUNK)
    step.prepare()
    columns, draws = talker.head.columns(family.sampling(drawn=True)), np.zeros(talker.head.draws)
    rows = [Row(slot, columns, draws, False, 1, 300, model.no_text) for slot in range(batch)]
    streams = GraphedStreams(decoder, networks.form, Graphs(runner, batch, family.chunk_frames), most=batch)
    streams.prepare()
    fresh = decoder.new_state(1)
    numbers = [streams.open(fresh.fork()) for _ in range(batch - 1)]
    found = {"frame": 2 + started(gpu, lambda: step.begin(rows))}
    began = started(gpu, lambda: numbers.append(streams.open(fresh.fork())))
    chunks = [networks.form.payload.zeros(family.chunk_frames[-1])] * batch
    return {**found, "chunk": 1 + started(gpu, lambda: streams.decode(numbers, chunks)), "stream": began}


def started(gpu: PretendGPU, work: Callable[[], object]) -> int:
    """Kernels, and copies to and from the device."""
    begun = gpu.begun
    gpu.launches.clear()
    work()
    return sum(gpu.launches.values()) + gpu.begun - begun


def together(
    frames: dict[int, dict[str, Account]], chunks: dict[str, dict[int, dict[int, Account]]], frame_seconds: float
) -> list[dict[str, Any]]:
    """What a frame of so many streams takes in talker and code2wav, in chunks of the longest usual length."""
    found = []
    for streams, parts in frames.items():
        talker = parts["talker"].seconds + parts["predictor"].seconds
        for way, batches in chunks.items():
            batch = min(streams, TOGETHER)
            longest = max(batches[batch])
            decoder = math.ceil(streams / batch) * batches[batch][longest].seconds / longest
            found.append(
                {
                    "streams": streams,
                    "decoder": way,
                    "talker_ms": 1e3 * talker,
                    "code2wav_ms": 1e3 * decoder,
                    "frame_ms": 1e3 * (talker + decoder),
                    "audio_a_second": streams * frame_seconds / (talker + decoder),
                }
            )
    return found


def on_gpu(make: Callable[[], Any], dtype: torch.dtype) -> Any:
    """A network of any weights."""
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            return make().requires_grad_(False)
    finally:
        torch.set_default_dtype(torch.float32)


def talker_on_gpu(networks: Networks) -> Any:
    """The talker in bf16."""
    network = on_gpu(networks.talker, torch.bfloat16)
    return network.talker() if hasattr(network, "talker") else network


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
        "flops": account.flops,
        "estimated_ms": round(1e3 * account.seconds, 3),
        "by_operator": dict(account.kernels.most_common()),
    }


def show(
    given: Any,
    frame_seconds: float,
    frames: dict[int, dict[str, Account]],
    chunks: dict[str, dict[int, dict[int, Account]]],
    sums: list[dict[str, Any]],
) -> None:
    print(f"\n{given.shape}, {given.length} positions; estimated from {given.kernel_us} us a kernel and ", end="")
    print(f"{given.share:.0%} of {given.bandwidth:g} TB/s and {given.fp32:g}, {given.tf32:g}, {given.bf16:g} ", end="")
    print("TFLOP/s in fp32, TF32, bf16; not measured\n")
    show_frames(frames, frame_seconds)
    lines = [
        [way, batch, size, each.count, each.bytes / 1e9, each.flops / 1e9, 1e3 * each.seconds]
        for way, batches in chunks.items()
        for batch, of in batches.items()
        for size, each in of.items()
    ]
    print("\ncode2wav\n")
    print(report.table(["decoder", "streams", "frames", "kernels", "GB", "GFLOP", "ms"], lines))
    print("\nTalker and code2wav together, in turns on one GPU\n")
    columns = ["streams", "decoder", "ms a frame: talker", "code2wav", "sum", "audio s a second"]
    print(report.table(columns, [list(each.values()) for each in sums]))
    show_arithmetic(given, frame_seconds, *next(iter(chunks["fp32"].items())))


def show_arithmetic(given: Any, frame_seconds: float, streams: int, of: dict[int, Account]) -> None:
    """What the decoder's arithmetic alone allows, from its chunks of so many streams."""
    longest = max(of)
    frame = of[longest].flops / longest / streams
    print(f"\nA frame of code2wav takes {frame / 1e9:.2f} GFLOP, so that its arithmetic alone allows\n")
    rows = []
    for way in WAYS:
        most = frame_seconds * 1e12 * getattr(given, way) / frame
        rows.append([way, most, given.share * most])
    print(report.table(["decoder", "audio s a second at the peak", f"at {given.share:.0%}"], rows))


def show_frames(frames: dict[int, dict[str, Account]], frame_seconds: float) -> None:
    rows: list[list[Any]] = []
    for batch, parts in frames.items():
        talker, predictor, prompt = parts["talker"], parts["predictor"], parts["prompt"]
        seconds = talker.seconds + predictor.seconds
        rows.append(
            [
                *(batch, talker.count, predictor.count, (talker.bytes + predictor.bytes) / 1e9),
                *(1e3 * talker.seconds, 1e3 * predictor.seconds, 1e3 * seconds, batch * frame_seconds / seconds),
                *(prompt.count, 1e3 * prompt.seconds),
            ]
        )
    columns = ["streams", "kernels: talker", "predictor, draws", "GB", "ms: talker", "predictor, draws", "frame"]
    prompts = [f"kernels: {PREFILL_CHUNK} positions of prompts", "ms"]
    print(report.table([*columns, "audio s a second", *prompts], rows))


if __name__ == "__main__":
    sys.exit(main())
