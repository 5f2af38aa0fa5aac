"""The codec's decoder at other precisions than the served one, alone: how fast, and how far from fp32.

Its arithmetic bounds a GPU at many streams. TF32 keeps tensors in fp32 and multiplies ten bits of each mantissa; bf16
has seven everywhere. How far samples are apart does not tell how they sound: before one of them is served, somebody
must listen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from perf import report
from perf.families import FAMILIES
from perf.families.family import Family
from voice_clone import compute
from voice_clone.codec.decoder import CodecFormat
from voice_clone.codec.graphed_decoder import GraphedDecoder
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import Settings

WAYS = ("fp32", "tf32", "bf16")
STREAMS = (1, 32)  # 32: as many as a server decodes together
CHUNKS = 6  # of the longest usual length, one after the other


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """By precision and streams: seconds of a chunk, audio seconds a second, and the distance from fp32."""
    family = FAMILIES[given.family]
    found: dict[str, Any] = {}
    exact: dict[int, torch.Tensor] = {}
    compute.prepare(_settings(folder, given.device, "fp32"))  # the switches that a server sets, before TF32 is allowed
    for way in WAYS if given.device == "cuda" else ("fp32", "bf16"):
        with _tf32(way == "tf32"):
            decoder, form = _decoder(family, folder, given.device, "bf16" if way == "bf16" else "fp32")
            found[way] = {}
            for streams in STREAMS:
                waveform, seconds = _decoded(decoder, form, family.chunk_frames[-1], streams, given.runs)
                reference = exact.setdefault(streams, waveform)
                difference = float((waveform - reference).square().mean().sqrt() / reference.square().mean().sqrt())
                audio = streams * family.chunk_frames[-1] * form.frame_seconds
                rate = report.summary([audio / each for each in seconds])
                found[way][streams] = {"chunk_s": report.summary(seconds), "audio_a_second": rate, "apart": difference}
    return found


def show(found: dict[str, Any], frames: int) -> None:
    """`frames` of a chunk."""
    rows = [
        [way, streams, 1e3 * of["chunk_s"]["p50"], of["audio_a_second"]["p50"], of["apart"]]
        for way, by_streams in found.items()
        for streams, of in by_streams.items()
    ]
    print(f"\ncode2wav, chunks of {frames} frames\n")
    print(report.table(["precision", "streams", "ms a chunk", "audio s a second", "apart from fp32"], rows))


def _decoder(family: type[Family], folder: Path, device: str, precision: str) -> tuple[GraphedDecoder, CodecFormat]:
    decoder, form = family.torch_decoder(_settings(folder, device, precision))
    if precision == "bf16":
        decoder.bfloat16()  # a CPU would be given fp32
    runner = GraphRunner.on(decoder.device)
    return GraphedDecoder(decoder, form, max(STREAMS), family.chunk_frames[-1:], runner), form


def _settings(folder: Path, device: str, precision: str) -> Settings:
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": device, "PRECISION": precision}
    return Settings({}, {f"VOICE_CLONE_{name}": value for name, value in given.items()})


def _decoded(
    decoder: GraphedDecoder, form: CodecFormat, length: int, streams: int, runs: int
) -> tuple[torch.Tensor, list[float]]:
    """The waveform [B, samples] of random codes, and the seconds of each chunk; the first one warms up.

    Args:
        length: frames of a chunk.
    """
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(32, (streams, form.payload.width, CHUNKS * length), generator=generator).to(decoder.device)
    seconds: list[float] = []
    pieces: list[torch.Tensor] = []
    for run in range(runs + 1):
        state, pieces = decoder.new_state(streams), []
        for chunk in codes.split(length, dim=-1):  # type: ignore[no-untyped-call]
            began = time.perf_counter()
            pieces.append(decoder.decode_chunk(chunk, state).float().cpu())
            if run:
                seconds.append(time.perf_counter() - began)
    return torch.cat(pieces, dim=-1), seconds


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """With the served switches otherwise; what is recorded within keeps them."""
    matrix, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matrix, convolution
