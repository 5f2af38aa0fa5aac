"""Times the codec decoder at a released or a tiny shape, with random weights: chunks, batches, references.

On a CPU torch's network and the native code are timed side by side, in turns.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch

from perf.machine import give_threads, keep_threads
from tests.support.random_weights import fill_random
from voice_clone.codec.decoder import StreamDecoder
from voice_clone.families.qwen3_tts.config import CodecDecoderConfig
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.native_decoder import NativeCodecDecoder

RELEASED = CodecDecoderConfig(
    codebook_dim=512, hidden_size=512, head_dim=64, intermediate_size=1024, latent_dim=1024, decoder_dim=1536
)
TINY = CodecDecoderConfig(
    codebook_dim=32,
    hidden_size=32,
    head_dim=16,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=64,
    latent_dim=64,
    decoder_dim=64,
    num_hidden_layers=2,
)
SHAPES = {"released": RELEASED, "tiny": TINY}
FRAME_MS = 80.0  # of speech

Run = Callable[[], object]


def milliseconds(runs: dict[str, Run], device: str, times: int) -> dict[str, list[float]]:
    """Times of each call, in turns, after one that does not count."""
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(times + 1):
        for name, run in runs.items():
            (give_threads if name == "torch" else keep_threads)()
            began = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:
                spent[name].append(1e3 * (time.perf_counter() - began))
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(prog="perf/code2wav", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shape", choices=tuple(SHAPES), default="released")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--frames", type=int, nargs="*", default=[1, 2, 4, 8, 12], help="of a chunk")
    parser.add_argument("--context", type=int, default=25, help="frames decoded again before a stateless chunk of 4")
    parser.add_argument("--reference", type=int, default=65, help="frames of a reference")
    parser.add_argument("--batches", type=int, nargs="*", default=[2, 4], help="of chunks of 4 frames")
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)

    config = SHAPES[given.shape]
    network = CodecDecoder(config).requires_grad_(False)
    fill_random(network, seed=0)
    decoders: dict[str, StreamDecoder] = {"torch": network.to(given.device)}
    if given.device == "cpu":
        decoders["native"] = NativeCodecDecoder(copy.deepcopy(network))

    def codes(frames: int, batch: int) -> torch.Tensor:
        return torch.randint(config.codebook_size, (batch, config.num_quantizers, frames), device=given.device)

    def chunk(decoder: StreamDecoder, frames: int, batch: int = 1) -> Run:
        chosen, state = codes(frames, batch), decoder.new_state(batch)
        return lambda: decoder.decode_chunk(chosen, state)

    def prime(decoder: StreamDecoder) -> Run:
        chosen = codes(given.reference, 1)
        return lambda: decoder.prime(chosen, decoder.new_state(1))

    def row(name: str, frames: int, make: Callable[[StreamDecoder], Run]) -> None:
        spent = milliseconds({kind: make(decoder) for kind, decoder in decoders.items()}, given.device, given.runs)
        middle = {kind: statistics.median(times) for kind, times in spent.items()}
        cells = [f"{middle[kind]:.1f} ({min(times):.1f} to {max(times):.1f})" for kind, times in spent.items()]
        *_, best = middle.values()
        cells += [f"{middle['torch'] / best:.2f}"] * (len(middle) > 1) + [f"{frames * FRAME_MS / best:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)

    print(f"{given.device}, {given.threads} threads, torch {torch.__version__}, {given.shape} shape")
    print(f"median of {given.runs} (least to most), ms\n")
    heads = ["", *decoders, *(["times as fast"] if len(decoders) > 1 else []), "x real time"]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for frames in given.frames:
        row(f"{frames} frames", frames, lambda decoder, n=frames: chunk(decoder, n))  # type: ignore[misc]
    again = 4 + given.context
    row(f"4 frames + {given.context} of context, without state", 4, lambda decoder: chunk(decoder, again))
    for batch in given.batches:
        row(f"4 frames, {batch} streams", 4 * batch, lambda decoder, n=batch: chunk(decoder, 4, n))  # type: ignore[misc]
    row(f"a reference of {given.reference} frames, once a voice", given.reference, prime)
    for kind, decoder in decoders.items():
        print(f"\na stream's state, {kind}: {decoder.new_state(1).nbytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
