"""CUDA graphs against eager steps, in this process: equal, and how fast, beside other implementations."""

from __future__ import annotations

import argparse
import gc
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from perf import gpu_equal, report
from perf.engines import MEASURES, TEXT, Official, Ours, Spent
from perf.reference import CLIP, TRANSCRIPT

FRAME_SECONDS = 0.08
MAX_LENGTH = 1024  # positions of a stream; two engines hold those of all streams in fp32 at once
CPU_FRAMES = 12  # of each stream, against a CPU
PATIENCE = 8.0  # seconds, after which an engine gets no further run of so many streams
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BOUNDS = {"fp32": 1e-3, "bf16": 5e-2}  # of a difference's RMS, relative to the RMS of what it is a difference of
EAGER, FIXED, SERVED = "ours, eager", "ours, graphs", "ours, as served"
OFFICIAL, FASTER = "qwen-tts", "faster-qwen3-tts"


class Faster:
    """faster-qwen3-tts, as its README uses it: CUDA graphs, one stream, chunks of 8 frames."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from faster_qwen3_tts import FasterQwen3TTS  # type: ignore[import-not-found]

        self.model = FasterQwen3TTS.from_pretrained(str(folder), device="cuda", dtype=dtype)

    def speak(self, frames: int) -> Spent:
        began, first, seconds = time.perf_counter(), 0.0, 0.0
        for chunk, rate, _ in self.model.generate_voice_clone_streaming(
            text=TEXT,
            language="English",
            ref_audio=str(CLIP),
            ref_text=TRANSCRIPT,
            chunk_size=8,
            max_new_tokens=frames,
            do_sample=False,
        ):
            seconds += len(chunk) / rate
            first = first or time.perf_counter() - began
        total = time.perf_counter() - began
        total *= frames * FRAME_SECONDS / seconds  # it may make a frame less
        return Spent(first, 0.0, total / frames, 0.0, total, frames)  # it tells no parts: all counts as frames


def measure(folder: Path, precision: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Equality at one precision, and times if it is one of `given.timed`."""
    eager = Ours(folder, precision, given.device, max_length=MAX_LENGTH)
    began = time.perf_counter()
    graphs = Ours(folder, precision, given.device, max(given.batches), MAX_LENGTH)
    loading = time.perf_counter() - began
    prompt = gpu_equal.a_prompt(eager)
    equal = gpu_equal.compare(eager, graphs, max(given.batches), min(given.frames, 50))
    recorded = sum(runner.recorded for runner in graphs.runners)
    passed = as_good_as_equal(equal, precision)
    passed &= given.device == "cpu" or recorded > 0
    engines: dict[str, Callable[[int], Spent]] = {
        EAGER: lambda streams: eager.speak(prompt, given.frames, streams)[1],
        FIXED: lambda streams: graphs.speak(prompt, given.frames, streams)[1],
        SERVED: lambda streams: graphs.speak(prompt, given.frames, streams, served=True)[1],
    }
    timed = precision in given.timed
    missing: dict[str, str] = {}
    if timed and not given.no_peers:
        others, missing = peers(folder, DTYPES[precision], given)
        engines |= others
    return {
        "passed": passed,
        "equal": equal,
        "graphs": {"recorded": recorded, "load_seconds": loading},
        "missing": missing,
        "times": times(engines, given) if timed else {},
    }


def against_cpu(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The eager steps of the device against the server's engine on a CPU, in fp32, from the same codes."""
    cpu = Ours(folder, "fp32", "cpu", max_length=MAX_LENGTH)
    eager = Ours(folder, "fp32", given.device, max_length=MAX_LENGTH)
    equal = gpu_equal.compare(cpu, eager, max(given.batches), min(given.frames, CPU_FRAMES))
    return {"passed": as_good_as_equal(equal, "fp32"), "equal": equal}


def as_good_as_equal(equal: dict[str, Any], precision: str) -> bool:
    """Whether rounding explains what `gpu_equal.compare` has found. bf16 rounds too coarsely to judge codes."""
    if equal["waveform"] is None or any(each["margin"] is None for each in equal["differences"]):
        return False
    close = equal["hidden"] < BOUNDS[precision] and equal["waveform"] < BOUNDS["fp32"]  # the decoder's precision
    return bool(close) and (precision != "fp32" or equal["parted"] == 0)


def leave_the_gpu() -> None:
    """Give back the memory of engines that are not used any more: a server takes a share of what is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peers(
    folder: Path, dtype: torch.dtype, given: argparse.Namespace
) -> tuple[dict[str, Callable[[int], Spent]], dict[str, str]]:
    """Other implementations, each of which speaks one stream; and those that cannot be imported, with the reason."""
    found: dict[str, Callable[[int], Spent]] = {}
    missing: dict[str, str] = {}
    try:
        official = Official(folder, given.device, dtype)
        found[OFFICIAL] = lambda streams: official.speak(given.frames)[1]
    except ImportError as error:
        missing[OFFICIAL] = str(error)
    if given.device == "cuda":
        try:
            faster = Faster(folder, dtype)
            found[FASTER] = lambda streams: faster.speak(given.frames)
        except ImportError as error:
            missing[FASTER] = str(error)
    return found, missing


def times(engines: dict[str, Callable[[int], Spent]], given: argparse.Namespace) -> dict[str, Any]:
    """By engine and number of streams, the engines in turns; one run of each goes before and does not count.

    An engine that is out of `PATIENCE` has one run that counts.
    """
    spent: dict[str, dict[int, list[Spent]]] = {name: {} for name in engines}
    for streams in given.batches:
        used: defaultdict[str, float] = defaultdict(float)
        for run in range(given.runs + 1):
            for name, speak in engines.items():
                if (streams > 1 and name in (OFFICIAL, FASTER)) or (run > 1 and used[name] > PATIENCE):
                    continue
                took = speak(streams)
                used[name] += took.total
                if run:
                    spent[name].setdefault(streams, []).append(took)
    speech = given.frames * FRAME_SECONDS
    return {
        name: {
            streams: {
                **{part: report.summary([getattr(one, part) for one in runs]) for part in MEASURES},
                "real_time": report.summary([one.total / speech for one in runs]),
                "audio_a_second": report.summary([streams * speech / one.total for one in runs]),
                "frames_made": given.frames,
            }
            for streams, runs in of.items()
        }
        for name, of in spent.items()
    }


def show_cpu(found: dict[str, Any]) -> None:
    """The device against the CPU, in words."""
    equal = found["equal"]
    print(f"\nfp32 against a CPU: {'passed' if found['passed'] else 'FAILED'}. {gpu_equal.told(equal)};", end=" ")
    print(f"hidden states {equal['hidden']:.1e} apart, allowed {BOUNDS['fp32']:.0e}.")


def show(precision: str, figures: dict[str, Any]) -> None:
    equal, graphs, bound = figures["equal"], figures["graphs"], BOUNDS[precision]
    print(f"\n{precision}: {'passed' if figures['passed'] else 'FAILED'}. Codes equal {equal['codes']:.2%}:", end=" ")
    print(f"{gpu_equal.told(equal)}. Apart:", end=" ")
    waveform = "not compared" if equal["waveform"] is None else f"{equal['waveform']:.1e}"
    print(f"hidden states {equal['hidden']:.1e}, waveforms {waveform}, allowed {bound:.0e}.", end=" ")
    print(f"{graphs['recorded']} graphs; loading took {graphs['load_seconds']:.1f} s.\n")
    for name, why in figures["missing"].items():
        print(f"{name} is left out: {why}\n")
    rows = []
    for name, of in figures["times"].items():
        for streams, parts in of.items():
            made = parts["frames_made"]
            frame, decode = 1e3 * parts["frame"]["p50"], 1e3 * parts["code2wav"]["p50"] / made
            spread = f"{1e3 * parts['frame']['min']:.3g} to {1e3 * parts['frame']['max']:.3g}"
            first, real_time = 1e3 * parts["first_audio"]["p50"], parts["real_time"]["p50"]
            rows.append(
                [
                    *(name, streams, parts["frame"]["n"], frame, spread, decode, first, real_time),
                    parts["audio_a_second"]["p50"],
                ],
            )
    columns = ["engine", "streams", "runs", "frame ms", "least to most", "code2wav ms a frame", "first audio ms"]
    if rows:
        print(report.table([*columns, "real-time factor", "audio s a second"], rows))
