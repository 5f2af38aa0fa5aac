"""The GPU path in one run: CUDA graphs equal eager steps, both are timed, then the whole server is tried.

    equal     graphs against eager: streams side by side, greedy, each step from the same past. fp32 codes must be
              equal; hidden states and waveforms must agree within the bounds below, at each precision
    frame     talker and code predictor, over the number of frames, prompt and first frame left out
    code2wav  the codec decoder, over the number of frames
    first     from the request to the first samples, of all streams together, of a voice that is known

    server    perf/gpu_server.py: the same through Triton, `--no-server` leaves it out

Speech is in-context cloning of a fixed number of frames, 80 ms each, greedy unless it is "as served": then with the
usual draws, and each step is begun before the frames of the one before are seen. The engines take turns. The precision
is the talker's; our decoder is in fp32, as a server's. The official package, wholly in that precision, and
faster-qwen3-tts, where it is installed, speak one stream at a time. They are in the same process and have the same
switches of torch as ours: no TF32, no attention of cuDNN. Alone they may be faster.

Exit status: 0; 1 if something is not equal or no graph could be recorded; 2 if there is no GPU. `--device cpu` runs the
same code, with steps of fixed shapes instead of graphs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from perf import gpu_server, report
from perf.engines import MEASURES, SCHEDULE, TEXT, Official, Ours, Spent
from perf.reference import CLIP, TRANSCRIPT
from tools import guard
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint, make_endless
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters

FRAME_SECONDS = 0.08
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=("tiny", "0.6b", "1.7b"), default="0.6b", help="of a random checkpoint")
    parser.add_argument("--checkpoint", type=Path, help="this checkpoint instead")
    parser.add_argument("--precision", nargs="+", choices=tuple(DTYPES), default=["fp32", "bf16"])
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--no-peers", action="store_true", help="only ours")
    parser.add_argument("--no-server", action="store_true", help="not through Triton")
    parser.add_argument("--callers", nargs="+", type=int, default=[1, 64], help="at once, through Triton")
    parser.add_argument("--rates", nargs="*", type=float, default=[1.0, 20.0], help="requests a second, through Triton")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("There is no CUDA device here; --device cpu runs the same code without graphs.", file=sys.stderr)
        return 2
    with guard.temporary_folder() as scratch:
        folder = given.checkpoint or scratch / "checkpoint"
        if given.checkpoint is None:
            make_checkpoint(given.shape, 0, folder)
        folder = make_endless(folder, scratch / "endless")
        found = {precision: measure(folder, precision, given) for precision in given.precision}
        served = None if given.no_server else gpu_server.measure(folder, scratch, given)
    if given.device == "cuda":
        print(
            f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, median of {given.runs}, "
            f"{given.frames} frames"
        )
    for precision, figures in found.items():
        show(precision, figures)
    if served is not None:
        gpu_server.show(served)
    settings = {"device": given.device, "shape": given.shape, "frames": given.frames, "runs": given.runs}
    report.write(given.json, {**settings, "figures": found, "server": served})
    passed = all(figures["passed"] for figures in found.values()) and not (served and served["failed"])
    return 0 if passed else 1


def measure(folder: Path, precision: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Equality and times at one precision."""
    eager = Ours(folder, precision, given.device)
    began = time.perf_counter()
    graphs = Ours(folder, precision, given.device, max(given.batches))
    loading = time.perf_counter() - began
    prompt = a_prompt(eager)
    equal = compare(eager, graphs, prompt, max(given.batches), min(given.frames, 50))
    recorded = sum(runner.recorded for runner in graphs.runners)
    passed = equal["hidden"] < BOUNDS[precision] and equal["waveform"] < BOUNDS[precision]
    passed &= precision != "fp32" or equal["codes"] == 1.0
    passed &= given.device == "cpu" or recorded > 0
    engines: dict[str, Callable[[int], Spent]] = {
        EAGER: lambda streams: eager.speak(prompt, given.frames, streams)[1],
        FIXED: lambda streams: graphs.speak(prompt, given.frames, streams)[1],
        SERVED: lambda streams: graphs.speak(prompt, given.frames, streams, served=True)[1],
    }
    if not given.no_peers:
        engines |= peers(folder, DTYPES[precision], given)
    return {
        "passed": passed,
        "equal": equal,
        "graphs": {"recorded": recorded, "load_seconds": loading},
        "times": times(engines, given),
    }


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
    """By engine and number of streams, the engines in turns; one run of each goes before and does not count."""
    spent: dict[str, dict[int, list[Spent]]] = {name: {} for name in engines}
    for streams in given.batches:
        for run in range(given.runs + 1):
            for name, speak in engines.items():
                if streams > 1 and name in (OFFICIAL, FASTER):
                    continue
                took = speak(streams)
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
                [name, streams, frame, spread, decode, first, real_time, parts["audio_a_second"]["p50"]],
            )
    columns = ["engine", "streams", "frame ms", "least to most", "code2wav ms a frame", "first audio ms"]
    print(report.table([*columns, "real-time factor", "audio s a second"], rows))


if __name__ == "__main__":
    sys.exit(main())
