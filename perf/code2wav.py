"""Times the codec decoder at the released shape, with random weights: stateful chunks, batches, references."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from tests.random_weights import fill_random
from voice_clone.qwen3_tts.codec_decoder import CodecDecoder
from voice_clone.qwen3_tts.config import CodecDecoderConfig

RELEASED = CodecDecoderConfig(
    codebook_dim=512, hidden_size=512, head_dim=64, intermediate_size=1024, latent_dim=1024, decoder_dim=1536
)
FRAME_MS = 80.0  # of speech


def milliseconds(run: Callable[[], object], device: str, runs: int) -> float:
    """Median time of a call, after one that does not count."""
    times = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--frames", type=int, default=4, help="of a chunk")
    parser.add_argument("--context", type=int, default=25, help="frames decoded again before each stateless chunk")
    parser.add_argument("--reference", type=int, default=65, help="frames of a reference")
    parser.add_argument("--batches", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)

    decoder = CodecDecoder(RELEASED).requires_grad_(False)
    fill_random(decoder, seed=0)
    decoder.to(given.device)

    def chunk(frames: int, batch: int = 1) -> Callable[[], object]:
        shape = (batch, RELEASED.num_quantizers, frames)
        codes = torch.randint(RELEASED.codebook_size, shape, device=given.device)
        state = decoder.new_state(batch)
        return lambda: decoder.decode_chunk(codes, state)

    def prime() -> Callable[[], object]:
        shape = (1, RELEASED.num_quantizers, given.reference)
        codes = torch.randint(RELEASED.codebook_size, shape, device=given.device)
        return lambda: decoder.prime(codes, decoder.new_state(1))

    def row(name: str, run: Callable[[], object], frames: int) -> float:
        spent = milliseconds(run, given.device, given.runs)
        print(f"| {name} | {spent:.1f} | {spent / frames:.1f} | {frames * FRAME_MS / spent:.2f} |", flush=True)
        return spent

    print(f"{given.device}, {given.threads} threads, torch {torch.__version__}, median of {given.runs}\n")
    print("| | ms | ms a frame | x real time |\n|---|---|---|---|")
    for frames in sorted({1, 2, 8, 12} - {given.frames}):
        row(f"{frames} frames, stateful", chunk(frames), frames)
    stateful = row(f"{given.frames} frames, stateful", chunk(given.frames), given.frames)
    again = row(
        f"{given.frames} frames + {given.context} of context", chunk(given.frames + given.context), given.frames
    )
    for batch in given.batches:
        row(f"{given.frames} frames, stateful, {batch} streams", chunk(given.frames, batch), given.frames * batch)
    primed = milliseconds(prime(), given.device, given.runs)
    print(f"\nstateful costs {stateful / again:.2f} of decoding again with context")
    print(f"the state after a reference of {given.reference} frames takes {primed:.1f} ms, once a voice")
    print(f"a stream's state: {decoder.new_state(1).nbytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
