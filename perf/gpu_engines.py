"""CUDA graphs against eager steps, in this process: equal, and how fast, beside other implementations."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from perf import report
from perf.engines import MEASURES, SCHEDULE, TEXT, Official, Ours, Spent
from perf.reference import CLIP, TRANSCRIPT
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters

FRAME_SECONDS = 0.08
MAX_LENGTH = 1024  # positions of a stream; two engines hold those of all streams in fp32 at once
PATIENCE = 8.0  # seconds, after which an engine gets no further run of so many streams
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BOUNDS = {"fp32": 1e-3, "bf16": 5e-2}  # of a difference's RMS, relative to the RMS of what it is a difference of
EAGER, FIXED, SERVED = "ours, eager", "ours, graphs", "ours, as served"
OFFICIAL, FASTER = "qwen-tts", "faster-qwen3-tts"
GREEDY = SamplingParameters(seed=0, do_sample=False, subtalker_do_sample=False)


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
    prompt = a_prompt(eager)
    equal = compare(eager, graphs, prompt, max(given.batches), min(given.frames, 50))
    recorded = sum(runner.recorded for runner in graphs.runners)
    passed = equal["hidden"] < BOUNDS[precision] and equal["waveform"] < BOUNDS["fp32"]  # the decoder's precision
    passed &= precision != "fp32" or equal["codes"] == 1.0
    passed &= given.device == "cpu" or recorded > 0
    engines: dict[str, Callable[[int], Spent]] = {
        EAGER: lambda streams: eager.speak(prompt, given.frames, streams)[1],
        FIXED: lambda streams: graphs.speak(prompt, given.frames, streams)[1],
        SERVED: lambda streams: graphs.speak(prompt, given.frames, streams, served=True)[1],
    }
    timed = precision in given.timed
    if timed and not given.no_peers:
        engines |= peers(folder, DTYPES[precision], given)
    return {
        "passed": passed,
        "equal": equal,
        "graphs": {"recorded": recorded, "load_seconds": loading},
        "times": times(engines, given) if timed else {},
    }


def leave_the_gpu() -> None:
    """Give back the memory of engines that are not used any more: a server takes a share of what is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def a_prompt(ours: Ours) -> Prompt:
    """A voice of 65 frames, as long as the shipped clip."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, ours.config.codec.decoder_config.codebook_size, (65, 16), dtype=np.int32)
    return ours.prompt(rng.standard_normal(ours.config.talker.hidden_size).astype(np.float32), codes)


def peers(folder: Path, dtype: torch.dtype, given: argparse.Namespace) -> dict[str, Callable[[int], Spent]]:
    """Other implementations; each speaks one stream."""
    official = Official(folder, given.device, dtype)
    found: dict[str, Callable[[int], Spent]] = {OFFICIAL: lambda streams: official.speak(given.frames)[1]}
    if given.device == "cuda":
        try:
            faster = Faster(folder, dtype)
        except ImportError:
            print(f"{FASTER} is not installed; it is left out", file=sys.stderr)
        else:
            found[FASTER] = lambda streams: faster.speak(given.frames)
    return found


@torch.inference_mode()
def compare(eager: Ours, graphs: Ours, prompt: Prompt, streams: int, frames: int) -> dict[str, float]:
    """Share of equal codes, and the largest relative difference of hidden states and of waveforms.

    After each step the graphs' streams are given the eager ones' codes, so that one difference does not make the next.
    """
    pair = [engine.generator(streams) for engine in (eager, graphs)]
    for generator in pair:
        for slot in range(streams):
            generator.start(slot, TalkerRequest(prompt, GREEDY, frames))
    equal, hidden, made = 0, 0.0, []
    for _ in range(frames):
        codes = [_codes(each, streams) for each in pair]
        equal += int((codes[0] == codes[1]).sum())
        hidden = max(hidden, apart(_hidden(pair[0], streams), _hidden(pair[1], streams)))
        for slot in range(streams):
            pair[1]._model.newest[slot] = torch.from_numpy(codes[0][slot])
        made.append(codes[0])
    for generator in pair:
        generator.reset()
    whole = torch.from_numpy(np.stack(made, axis=2).astype(np.int64)).to(eager.decoder.device)  # [B, K, frames]
    waveforms = []
    for engine in (eager, graphs):
        state = engine.decoder.new_state(streams)
        sizes = [*SCHEDULE, *[SCHEDULE[-1]] * frames]
        pieces, done = [], 0
        for size in sizes:
            if done < frames:
                pieces.append(engine.decoder.decode_chunk(whole[..., done : done + size], state))
                done += size
        waveforms.append(torch.cat(pieces, dim=-1))
    return {
        "codes": equal / (frames * streams * made[0].shape[1]),
        "hidden": hidden,
        "waveform": apart(*waveforms),
    }


def _codes(generator: Generator[Prompt], streams: int) -> npt.NDArray[np.int32]:
    frames = [frame.payload for frame in generator.step(range(streams))]
    return np.stack([codes for codes in frames if codes is not None])


def _hidden(generator: Generator[Prompt], streams: int) -> torch.Tensor:
    return generator._model.hidden[:streams]


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """RMS of the difference over the RMS."""
    return float((a.float() - b.float()).square().mean().sqrt() / a.float().square().mean().sqrt())


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


def show(precision: str, figures: dict[str, Any]) -> None:
    equal, graphs, bound = figures["equal"], figures["graphs"], BOUNDS[precision]
    print(
        f"\n{precision}: {'passed' if figures['passed'] else 'FAILED'}. Codes equal {equal['codes']:.2%}; apart",
        end=" ",
    )
    print(f"hidden states {equal['hidden']:.1e}, waveforms {equal['waveform']:.1e}, allowed {bound:.0e}.", end=" ")
    print(f"{graphs['recorded']} graphs; loading took {graphs['load_seconds']:.1f} s.\n")
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
