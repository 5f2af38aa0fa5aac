"""The time of each stage of our engine, compared with the best rates of this machine in the same run.

    bandwidth floor   the stage's weights, read once, at the rate at which all threads together read a large array
    compute floor     its multiplications and additions, at the rate of a large fp32 matrix product

A stage cannot be faster than the larger of the two; `of the floor` is that over the measured time. Weights that a step
reads several times (the code predictor's layers, 15 times a frame) count each time: they do not fit a processor's
cache. Low precision reads fewer bytes; its compute floor is still that of fp32. Random weights in a released shape:
figures depend on shapes alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from perf.bench import report
from perf.bench.machine import arithmetic, bandwidth, give_threads, keep_threads
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint
from voice_clone.autoregressive.code_head import CodeHead
from voice_clone.autoregressive.native_predictor import NativePredictor
from voice_clone.autoregressive.sampling import CodeDraws, Filters
from voice_clone.autoregressive.stack.native_stack import NativeCache, NativeStack
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.families.qwen3_tts.codec import load_decoder, load_torch_decoder
from voice_clone.families.qwen3_tts.config import load_config
from voice_clone.families.qwen3_tts.encoder import (
    load_codec_encoder,
    load_speaker_encoder,
    load_torch_codec_encoder,
    load_torch_speaker_encoder,
)
from voice_clone.families.qwen3_tts.networks.native_codec_decoder import NativeCodecDecoder
from voice_clone.families.qwen3_tts.networks.native_talker import NativeTalker
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.talker import load_network
from voice_clone.native.arrays import Array
from voice_clone.settings import PRECISIONS, DecoderSettings, Settings
from voice_clone_server import guard
from voice_clone_server.diagnosis.workload import stack_weights

REFERENCE_SECONDS, SAMPLE_RATE = 10, 24_000
REFERENCE_FRAMES = 65  # 5.2 s
CONTEXT = 25  # frames that a decoder without state would decode again before each chunk
PROMPT = 128  # positions
EARLY, LATE = 100, 1500  # frames that a stream has behind it


@dataclass(frozen=True)
class Stage:
    """A piece of work that is timed.

    Attributes:
        name: for the table.
        run: does it once.
        bytes: of weights that it must read.
        multiplications: each with an addition.
        by_torch: whether torch computes it; the others are native code.
    """

    name: str
    run: Callable[[], Any]
    bytes: float
    multiplications: float
    by_torch: bool = False


def convolutions(module: nn.Module, run: Callable[[], Any]) -> float:
    """Multiplications of a module's convolutions and linear layers in one run."""
    total = 0.0

    def count(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal total
        weight: Any = layer.weight
        places = inputs[0].shape[-1] if isinstance(layer, nn.ConvTranspose1d) else output.shape[-1]
        if isinstance(layer, nn.Linear):
            places = output.numel() // output.shape[-1] // inputs[0].shape[0]
        total += inputs[0].shape[0] * places * weight.numel()

    layers = [m for m in module.modules() if isinstance(m, (nn.Conv1d, nn.ConvTranspose1d, nn.Linear))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    run()
    for hook in hooks:
        hook.remove()
    return total


def encoders(settings: Settings) -> list[Stage]:
    """Of a reference clip; needed once a voice."""
    speaker, codec = load_speaker_encoder(settings)[0], load_codec_encoder(settings)[0]
    in_torch, codec_in_torch = load_torch_speaker_encoder(settings)[0], load_torch_codec_encoder(settings)[0]
    waveform = np.float32(0.1) * np.random.default_rng(0).standard_normal(REFERENCE_SECONDS * SAMPLE_RATE, np.float32)
    found = []
    for name, run, network, counted in (
        ("speaker encoder", lambda: speaker.embed(waveform), in_torch, lambda: in_torch.embed(waveform)),
        ("codec encoder", lambda: codec.encode(waveform), codec_in_torch, lambda: codec_in_torch.encode(waveform)),
    ):
        work = convolutions(network, counted)
        found.append(Stage(f"{name}, {REFERENCE_SECONDS} s", run, _bytes(network), work))
    return found


def _bytes(module: Any) -> float:
    return float(sum(weight.nbytes for weight in module.parameters()))


def generation(talker: NativeTalker, batches: Sequence[int]) -> list[Stage]:
    """Prefill, and for each batch the talker's step, early and late, and the code predictor's 15."""
    stack, head, config = talker.stack, talker.head, talker.config
    assert isinstance(stack, NativeStack) and isinstance(head, CodeHead)
    predictor = head.predictor
    assert isinstance(predictor, NativePredictor)
    layers = stack_weights(StackConfig.of(config.talker))
    inner = stack_weights(StackConfig.of(config.talker.code_predictor_config))
    books = config.talker.num_code_groups
    heads = (
        (books - 1) * config.talker.code_predictor_config.vocab_size * config.talker.code_predictor_config.hidden_size
    )
    cache = stack.new_cache(max(batches), LATE + PROMPT + 8)
    size = config.talker.hidden_size
    random = np.random.default_rng(0)
    prompt = random.standard_normal((PROMPT, size), np.float32)
    bytes_ = float(stack.nbytes)
    found = [Stage(f"prefill, {PROMPT} positions", lambda: stack.prefill(cache, 0, prompt), bytes_, PROMPT * layers)]
    for batch in batches:
        rows = random.standard_normal((batch, size), np.float32)
        for position in (EARLY, LATE):
            # The keys and values that a step reads are as many bytes as they are multiplications times 2.
            kv = _kv_values(config.talker) * (PROMPT + position) * batch
            where = [PROMPT + position] * batch
            run = _decode(stack, cache, where, rows)
            found.append(
                Stage(f"talker, frame {position}, batch {batch}", run, bytes_ + 4 * kv, batch * layers + 2 * kv)
            )
        small, codes = predictor.new_memory(batch), np.zeros(batch, np.int64)
        found.append(
            Stage(
                f"code predictor, batch {batch}",
                _predict(predictor, small, rows, codes),
                predictor.frame_bytes,
                batch * (books * inner + heads),
            )
        )
    return found


def _decode(stack: NativeStack, cache: NativeCache, where: list[int], rows: Array) -> Callable[[], Any]:
    return lambda: stack.decode(cache, range(len(where)), where, rows)


def _predict(predictor: NativePredictor, cache: NativeCache, rows: Array, codes: Array) -> Callable[[], Any]:
    columns = np.tile(SamplingParameters(seed=0, subtalker_do_sample=False).others, (len(rows), 1))
    uniform = np.zeros((len(rows), predictor.codebooks))
    draws = CodeDraws(columns.astype(np.float32), Filters.of(columns), uniform)
    return lambda: predictor.complete(cache, rows, codes, rows, draws)


def _kv_values(config: Any) -> float:
    """Numbers that a position has in the key-value cache."""
    return float(2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim)


def decoding(settings: Settings, batches: Sequence[int]) -> list[Stage]:
    """code2wav: chunks by frames and batch, the same in torch, a chunk decoded with its context, a reference."""
    decoder = load_decoder(settings).decoder
    assert isinstance(decoder, NativeCodecDecoder)
    codec = load_config(DecoderSettings.of(settings).checkpoint_dir).codec.decoder_config
    found = []
    for batch in batches:
        for frames in (1, 4, 12):
            codes = torch.randint(codec.codebook_size, (batch, codec.num_quantizers, frames))
            state = decoder.new_state(batch)
            run = _decode_chunk(decoder, codes.numpy(), state)
            name = f"code2wav, {frames} frame{'s' * (frames > 1)}, batch {batch}"
            found.append(Stage(name, run, decoder.nbytes, batch * frames * decoder.multiplications))
    network, _ = load_torch_decoder(settings)

    def alone(frames: int) -> torch.Tensor:
        return torch.randint(codec.codebook_size, (1, codec.num_quantizers, frames))

    for name, frames in (("4 frames", 4), (f"4 frames after {CONTEXT} that are decoded again", 4 + CONTEXT)):
        for by, kind in (("", decoder), (", in torch", network)):
            if by or frames > 4:
                codes = alone(frames)
                run = _decode_chunk(kind, codes if by else codes.numpy(), kind.new_state(1))
                work = frames * decoder.multiplications
                found.append(Stage(f"code2wav, {name}{by}", run, decoder.nbytes, work, by_torch=bool(by)))
    reference = alone(REFERENCE_FRAMES).numpy()
    found.append(
        Stage(
            f"code2wav, a reference of {REFERENCE_FRAMES} frames",
            lambda: decoder.prime(reference, decoder.new_state(1)),
            decoder.nbytes,
            decoder.receptive_field
            * decoder.multiplications,  # of the frames that convolutions see: nearly all of the work
        )
    )
    return found


def _decode_chunk(decoder: Any, codes: Any, state: Any) -> Callable[[], Any]:
    return lambda: decoder.decode_chunk(codes, state)


def measure(all_stages: Sequence[Stage], runs: int) -> list[dict[str, Any]]:
    """Run all stages in turns, so that a slow moment affects all alike, and measure the floors in between."""
    times: list[list[float]] = [[] for _ in all_stages]
    rates = []
    with torch.inference_mode():
        for stage in all_stages:
            stage.run()
        for _ in range(runs):
            rates.append((bandwidth(0.3), arithmetic(0.3)))
            for stage, spent in zip(all_stages, times, strict=True):
                (give_threads if stage.by_torch else keep_threads)()
                began = time.perf_counter()
                stage.run()
                spent.append(1e3 * (time.perf_counter() - began))
    fastest = [max(values) for values in zip(*rates, strict=True)]
    return [
        {
            "stage": stage.name,
            "ms": report.summary(spent),
            "bandwidth_ms": 1e3 * stage.bytes / fastest[0],
            "compute_ms": 1e3 * stage.multiplications / fastest[1],
            "bytes_a_second": fastest[0],
            "multiplications_a_second": fastest[1],
        }
        for stage, spent in zip(all_stages, times, strict=True)
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/stages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=("tiny", "0.6b", "1.7b"), default="tiny", help="of a random checkpoint")
    parser.add_argument("--checkpoint", type=Path, help="this checkpoint instead")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with guard.temporary_folder() as scratch:
        folder = given.checkpoint or scratch / "checkpoint"
        if given.checkpoint is None:
            make_checkpoint(given.shape, 0, folder)
        found = {}
        for precision in given.precision:
            environment = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", "PRECISION": precision}
            settings = Settings({}, environ={f"VOICE_CLONE_{name}": value for name, value in environment.items()})
            found[precision] = measure(generation(load_network(settings), given.batch), given.runs)
        settings = Settings({}, environ={"VOICE_CLONE_CHECKPOINT_DIR": str(folder), "VOICE_CLONE_DEVICE": "cpu"})
        found["networks in fp32"] = measure([*encoders(settings), *decoding(settings, given.batch)], given.runs)
    columns = ("stage", "ms p50", "least", "most", "bandwidth floor", "compute floor", "of the floor")
    for precision, rows in found.items():
        print(
            f"\n{precision}, {given.threads} threads: {rows[0]['bytes_a_second'] / 1e9:.1f} GB/s, "
            f"{2 * rows[0]['multiplications_a_second'] / 1e9:.0f} GFLOP/s\n"
        )
        print(report.table(columns, [_row(row) for row in rows]))
    report.write(given.output, {"threads": given.threads, "stages": found})


def _row(row: dict[str, Any]) -> list[Any]:
    spent = row["ms"]
    floor = max(row["bandwidth_ms"], row["compute_ms"])
    ends = [row["bandwidth_ms"], row["compute_ms"], f"{floor / spent['p50']:.0%}"]
    return [row["stage"], spent["p50"], spent["min"], spent["max"], *ends]


if __name__ == "__main__":
    main()
