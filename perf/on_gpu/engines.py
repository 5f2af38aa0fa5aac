"""CUDA graphs against eager steps, in this process: equal, and how fast, beside other implementations."""

from __future__ import annotations

import argparse
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from perf.bench import report
from perf.bench.engine import Ours
from perf.bench.families import FAMILIES
from perf.bench.spent import MEASURES, Spent
from perf.on_gpu import equality
from voice_clone.autoregressive.generator import stream_bytes

CPU_FRAMES = 12  # of each stream, against a CPU
WARM_FRAMES = 8  # that another implementation speaks before it counts
PATIENCE = 8.0  # seconds, after which an engine gets no further run of so many streams
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BOUNDS = {"fp32": 1e-3, "bf16": 5e-2}  # of a difference's RMS, relative to the RMS of what it is a difference of
EAGER, FIXED, SERVED = "ours, eager", "ours, graphs", "ours, as served"
SHARE = 0.8  # of the memory behind the weights; the rest is for graphs and prompts


def measure(folder: Path, precision: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Equality at one precision, and times if it is one of `given.timed`."""
    family, batches = FAMILIES[given.family], given.batches
    before = free_memory(given.device)
    eager = Ours(family, folder, precision, given.device, max_length=family.max_length)
    missing: dict[str, str] = {}
    if given.device == "cuda":
        left = free_memory(given.device)  # the weights of the second engine take as much as those of the first
        stream = 2 * stream_bytes(eager.model.talker, family.max_length)
        batches, missing = that_fit(batches, stream, 2 * left - before)
    began = time.perf_counter()
    graphs = Ours(family, folder, precision, given.device, max(batches), family.max_length, given.masked)
    loading = time.perf_counter() - began
    prompt = eager.model.a_prompt()
    equal = equality.compare(eager, graphs, max(batches), min(given.frames, 50))
    recorded = sum(runner.recorded for runner in graphs.runners)
    passed = as_good_as_equal(equal, precision)
    passed &= given.device == "cpu" or recorded > 0
    engines: dict[str, Callable[[int], Spent]] = {
        EAGER: lambda streams: eager.speak(prompt, given.frames, streams)[1],
        FIXED: lambda streams: graphs.speak(prompt, given.frames, streams)[1],
        SERVED: lambda streams: graphs.speak(prompt, given.frames, streams, served=True)[1],
    }
    timed = precision in given.timed
    alone: list[str] = []
    if timed and not given.no_peers:
        others, why = peers(folder, DTYPES[precision], given)
        engines |= others
        missing |= why
        alone = [*others]
    return {
        "passed": passed,
        "equal": equal,
        "graphs": {
            "recorded": recorded,
            "load_seconds": loading,
            "own_lengths": graphs.model.talker.stack.varlen,
        },
        "missing": missing,
        "times": times(engines, alone, batches, given, eager.model.form.frame_seconds) if timed else {},
    }


def against_cpu(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The eager steps of the device against the server's engine on a CPU, in fp32, from the same codes."""
    family = FAMILIES[given.family]
    cpu = Ours(family, folder, "fp32", "cpu", max_length=family.max_length)
    eager = Ours(family, folder, "fp32", given.device, max_length=family.max_length)
    streams = min(max(given.batches), family.cpu_streams)
    equal = equality.compare(cpu, eager, streams, min(given.frames, CPU_FRAMES))
    return {"passed": as_good_as_equal(equal, "fp32"), "equal": equal}


def as_good_as_equal(equal: dict[str, Any], precision: str) -> bool:
    """Whether rounding explains what `equality.compare` has found. bf16 rounds too coarsely to judge codes."""
    if equal["waveform"] is None or any(each["margin"] is None for each in equal["differences"]):
        return False
    close = equal["hidden"] < BOUNDS[precision] and equal["waveform"] < BOUNDS["fp32"]  # the decoder's precision
    return bool(close) and (precision != "fp32" or equal["parted"] == 0)


def free_memory(device: str) -> int:
    """Bytes that are free on a GPU."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else 0


def leave_the_gpu() -> None:
    """Give back the memory of engines that are not used any more: a server takes a share of what is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def that_fit(batches: Sequence[int], stream: int, free: int) -> tuple[list[int], dict[str, str]]:
    """The numbers of streams that there is memory for, the smallest in any case; the others, and why not.

    Args:
        stream: bytes of a stream in all engines.
        free: bytes.
    """
    fitting = [each for each in batches if each * stream <= SHARE * free or each == min(batches)]
    left = f"GB, and {free / 1e9:.0f} GB are free behind the weights, of which {SHARE:.0%} are for streams"
    return fitting, {
        f"{each} streams": f"they take {each * stream / 1e9:.0f} {left}" for each in batches if each not in fitting
    }


def peers(
    folder: Path, dtype: torch.dtype, given: argparse.Namespace
) -> tuple[dict[str, Callable[[int], Spent]], dict[str, str]]:
    """Other implementations, each of which speaks one stream; and those that are left out, with the reason.

    Each speaks once here: one whose packages do not fit together must not end the measurement of the others.
    """
    family = FAMILIES[given.family]
    found: dict[str, Callable[[int], Spent]] = {}
    missing = dict(family.without_peers)
    for name, load in family.peers.items():
        try:
            speak = load(folder, given.device, dtype)
            speak(WARM_FRAMES)
        except Exception as error:  # of a package that is not ours: it may be any
            missing[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = partial(_alone, speak, given.frames)
    return found, missing


def _alone(speak: Callable[[int], Spent], frames: int, streams: int) -> Spent:
    return speak(frames)


def times(
    engines: dict[str, Callable[[int], Spent]],
    alone: Collection[str],
    batches: Sequence[int],
    given: argparse.Namespace,
    frame_seconds: float,
) -> dict[str, Any]:
    """By engine and number of streams, the engines in turns; one run of each goes before and does not count.

    An engine that is out of `PATIENCE` has one run that counts.

    Args:
        alone: those that speak one stream.
        batches: numbers of streams.
        frame_seconds: how long a frame is heard.
    """
    spent: dict[str, dict[int, list[Spent]]] = {name: {} for name in engines}
    for streams in batches:
        used: defaultdict[str, float] = defaultdict(float)
        for run in range(given.runs + 1):
            for name, speak in engines.items():
                if (streams > 1 and name in alone) or (run > 1 and used[name] > PATIENCE):
                    continue
                took = speak(streams)
                used[name] += took.total
                if run:
                    spent[name].setdefault(streams, []).append(took)
    speech = given.frames * frame_seconds
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
    print(f"\nfp32 against a CPU: {'passed' if found['passed'] else 'FAILED'}. {equality.counts(equal)};", end=" ")
    print(f"hidden states {equal['hidden']:.1e} apart, allowed {BOUNDS['fp32']:.0e}.")


def show(precision: str, figures: dict[str, Any]) -> None:
    equal, graphs, bound = figures["equal"], figures["graphs"], BOUNDS[precision]
    print(f"\n{precision}: {'passed' if figures['passed'] else 'FAILED'}. Codes equal {equal['codes']:.2%}:", end=" ")
    print(f"{equality.counts(equal)}. Apart:", end=" ")
    waveform = "not compared" if equal["waveform"] is None else f"{equal['waveform']:.1e}"
    print(f"hidden states {equal['hidden']:.1e}, waveforms {waveform}, allowed {bound:.0e}.", end=" ")
    print(f"{graphs['recorded']} graphs; loading took {graphs['load_seconds']:.1f} s.", end=" ")
    print(f"Attention of frames: {'over own lengths' if graphs['own_lengths'] else 'under masks'}.\n")
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
