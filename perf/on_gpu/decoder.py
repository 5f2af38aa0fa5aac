"""The codec's decoder at other precisions than the served one, alone: how fast, and how far from fp32.

Its arithmetic bounds a GPU at many streams. TF32 keeps tensors in fp32 and multiplies ten bits of each mantissa; bf16
has seven everywhere. How far samples are apart does not say how they sound: somebody must listen before one of
them is served.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from perf.bench import report
from perf.bench.families import FAMILIES
from perf.bench.families.family import Frames
from voice_clone import compute
from voice_clone.codec.decoder import CodecFormat
from voice_clone.codec.graphed_streams import GraphedStreams, Graphs
from voice_clone.codec.windowed_decoder import StreamingDecoder
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import DecoderSettings, Settings

WAYS = ("fp32", "tf32", "bf16")
STREAMS = (1, 32)  # 32: as many as a server decodes together
CHUNKS = 6  # of the longest usual length, one after the other
Waveforms = npt.NDArray[np.float32]


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """By precision and streams: seconds of a chunk, audio seconds a second, and the distance from fp32."""
    family = FAMILIES[given.family]
    length = family.chunk_frames[-1]
    found: dict[str, Any] = {}
    exact: dict[int, Waveforms] = {}
    settings = DecoderSettings.of(_settings(folder, given.device, "fp32"))
    compute.prepare(settings)  # the switches that a server sets, before TF32 is allowed
    for way in WAYS if given.device == "cuda" else ("fp32", "bf16"):
        with _tf32(way == "tf32"):
            decoder, form = family.torch_decoder(_settings(folder, given.device, "bf16" if way == "bf16" else "fp32"))
            if way == "bf16":
                decoder.bfloat16()  # a CPU would be given fp32
            graphs = Graphs(GraphRunner.on(decoder.device), max(STREAMS), (length,))
            open_streams = GraphedStreams(decoder, form, graphs, max(STREAMS))
            found[way] = {}
            for streams in STREAMS:
                frames = _some_frames(form, (streams, CHUNKS * length, form.payload.width))
                waveform, seconds = _decoded(decoder, open_streams, frames, given.runs)
                reference = exact.setdefault(streams, waveform)
                difference = float(np.sqrt(np.square(waveform - reference).mean() / np.square(reference).mean()))
                audio = streams * length * form.frame_seconds
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


def _settings(folder: Path, device: str, precision: str) -> Settings:
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": device, "PRECISION": precision}
    return Settings({}, {f"VOICE_CLONE_{name}": value for name, value in given.items()})


def _some_frames(form: CodecFormat, shape: tuple[int, int, int]) -> Frames:
    """[B, n, K]: small codes, or latents of noise."""
    rng = np.random.default_rng(0)
    if form.limits is None:
        return rng.standard_normal(shape, np.float32)
    return rng.integers(0, np.minimum(np.full(form.payload.width, 32), form.limits), shape).astype(np.int32)


def _decoded(
    decoder: StreamingDecoder, open_streams: GraphedStreams, codes: Frames, runs: int
) -> tuple[Waveforms, list[float]]:
    """The waveforms [B, samples] of codes [B, n, K], and the seconds of each chunk; the first run warms up."""
    seconds: list[float] = []
    pieces: list[Waveforms] = []
    for run in range(runs + 1):
        numbers, pieces = [open_streams.open(decoder.new_state(1)) for _ in codes], []
        for chunk in np.split(codes, CHUNKS, axis=1):
            began = time.perf_counter()
            pieces.append(np.stack(open_streams.decode(numbers, [*chunk])))
            if run:
                seconds.append(time.perf_counter() - began)
        for number in numbers:
            open_streams.close(number)
    return np.concatenate(pieces, axis=1), seconds


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """With the served switches otherwise; what is recorded within keeps them."""
    matrix, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matrix, convolution
