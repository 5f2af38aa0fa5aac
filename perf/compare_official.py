"""Ours as a bare engine against the official qwen-tts 0.1.1: same checkpoint, prompts, threads and process, in turns.

fp32 codes must be equal before anything is timed. Speech is in-context cloning of the shipped clip, greedy, of a fixed
number of frames; every frame is 80 ms of speech. The voice's prompt is made beforehand, as for a registered voice.

    first audio     from the request to the first samples; the official package returns all samples at the end
    prefill         talker over the prompt
    frame           a step of talker and code predictor, the first frame left out
    code2wav        the codec decoder, over the number of frames
    real-time       all of it over the length of the speech

Each run of ours is compared with the official run beside it. Memory is that of a separate process after
loading and one speech.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from perf import report
from perf.deviation import compare, forced_logits
from perf.engines import Official, Ours, Spent
from perf.machine import bandwidth
from tools import guard
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint, make_endless
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.native.matrix.weights import PRECISIONS

FRAME_SECONDS = 0.08
OFFICIAL = "official"


def memory(folder: Path, name: str, frames: int) -> float:
    """Megabytes of a process that has loaded one implementation and spoken."""
    command = [sys.executable, "-m", "perf.compare_official", "--checkpoint", str(folder), "--frames", str(frames)]
    command += ["--memory-of", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=guard.marked())
    return float(done.stdout.split()[-1])


def speak_once(folder: Path, name: str, frames: int) -> None:
    """Print this process's megabytes after one speech."""
    if name == OFFICIAL:
        Official(folder).speak(frames)
    else:
        ours = Ours(folder, name)  # type: ignore[arg-type]
        rng = np.random.default_rng(0)
        codes = rng.integers(0, ours.config.codec.decoder_config.codebook_size, (65, 16), dtype=np.int32)
        embedding = rng.standard_normal(ours.config.talker.hidden_size).astype(np.float32)
        ours.speak(ours.prompt(embedding, codes), frames)
    print(psutil.Process().memory_info().rss / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("tiny", "0.6b", "1.7b"), default="tiny", help="of a random checkpoint")
    parser.add_argument("--checkpoint", type=Path, help="this checkpoint instead")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--streams", type=int, default=4, help="side by side, for the throughput")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory, which starts processes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.memory_of:
        speak_once(given.checkpoint, given.memory_of, given.frames)
        return
    with guard.temporary_folder() as scratch:
        folder = given.checkpoint or scratch / "checkpoint"
        if given.checkpoint is None:
            make_checkpoint(given.shape, 0, folder)
        run(make_endless(folder, scratch / "endless"), given)


def run(folder: Path, given: argparse.Namespace) -> None:
    official = Official(folder)
    item = official.items[0]
    expected, _ = official.speak(given.frames)
    reference = item.ref_code.numpy().astype(np.int32), item.ref_spk_embedding.numpy()
    exact = Ours(folder, "fp32")
    prompt = exact.prompt(reference[1], reference[0])
    forced = forced_logits(exact.talker, prompt, expected)
    figures: dict[str, Any] = {}
    for precision in given.precision:
        ours = exact if precision == "fp32" else Ours(folder, precision)
        codes, _ = ours.speak(prompt, given.frames)
        if precision == "fp32" and not np.array_equal(codes, expected):
            raise SystemExit("the fp32 codes are not the official ones: nothing was timed")
        frame_bytes = ours.native.nbytes
        figures[precision] = {
            "equal_frames": int((codes == expected).all(axis=1).cumprod().sum()),
            "deviation": asdict(compare(forced, forced_logits(ours.talker, prompt, expected))),
            "bytes_a_frame": frame_bytes,
            **timed(official, partial(_spent, ours, prompt, given.frames), frame_bytes, given),
        }
        if ours is not exact:
            del ours
    if not given.no_memory:
        figures[OFFICIAL] = {"megabytes": memory(folder, OFFICIAL, 2)}
        for precision in given.precision:
            figures[precision]["megabytes"] = memory(folder, precision, 2)
    show(figures, given)
    report.write(given.json, {"frames": given.frames, "threads": given.threads, "figures": figures})


def _spent(ours: Ours, prompt: Prompt, frames: int, streams: int) -> Spent:
    return ours.speak(prompt, frames, streams)[1]


def timed(
    official: Official, speak: Callable[[int], Spent], frame_bytes: int, given: argparse.Namespace
) -> dict[str, Any]:
    """Runs in turns; ratios of neighbours. Of memory, the highest rate in 0.3 s just before and just after a speech."""
    theirs, ours, together, reads = [], [], [], []
    for _ in range(given.runs):
        theirs.append(official.speak(given.frames)[1])
        before = bandwidth(0.3)
        ours.append(speak(1))
        reads.append((before + bandwidth(0.3)) / 2)
        if given.streams > 1:
            together.append(speak(given.streams))
    speech = given.frames * FRAME_SECONDS
    pairs = list(zip(theirs, ours, strict=True))
    return {
        "official": {name: report.summary([getattr(each, name) for each in theirs]) for name in asdict(theirs[0])},
        "ours": {name: report.summary([getattr(each, name) for each in ours]) for name in asdict(ours[0])},
        "ratios": {
            name: report.summary([getattr(a, name) / getattr(b, name) for a, b in pairs]) for name in asdict(ours[0])
        },
        "real_time": report.summary([each.total / speech for each in ours]),
        "official_real_time": report.summary([each.total / speech for each in theirs]),
        "streams": given.streams,
        "throughput": report.summary(
            [given.streams * alone.total / all_.total for alone, all_ in zip(ours, together, strict=False)]
        ),
        "throughput_of_official": report.summary(
            [given.streams * alone.total / all_.total for alone, all_ in zip(theirs, together, strict=False)]
        ),
        "bytes_a_second": report.summary(reads),
        "bandwidth_share": report.summary(
            [frame_bytes / each.frame / rate for each, rate in zip(ours, reads, strict=True)]
        ),
    }


def show(figures: dict[str, Any], given: argparse.Namespace) -> None:
    def middle(found: dict[str, float]) -> str:
        return f"{found['p50']:.3g} ({found['min']:.3g} to {found['max']:.3g})" if found["n"] else ""

    rows = []
    for precision in given.precision:
        of = figures[precision]
        rows.append(
            [
                precision,
                *(middle(of["ratios"][name]) for name in ("prefill", "frame", "code2wav", "total", "first_audio")),
                middle(of["bandwidth_share"]),
                middle(of["real_time"]),
                middle(of["throughput"]),
                middle(of["throughput_of_official"]),
                f"{of['equal_frames']} of {given.frames}",
                *(f"{of['deviation'][name]:.2g}" for name in ("talker", "predictor")),
                *(f"{of['deviation'][name]:.1%}" for name in ("talker_choices", "predictor_choices")),
                of.get("megabytes"),
            ]
        )
    first = figures[given.precision[0]]
    print(
        f"\n{given.threads} threads, {given.frames} frames, median of {given.runs} (least to most). Official: "
        f"{1e3 * first['official']['frame']['p50']:.0f} ms a frame, real-time factor "
        f"{first['official_real_time']['p50']:.3g}, {figures.get(OFFICIAL, {}).get('megabytes', 0):.0f} MB.\n"
    )
    columns = [
        "precision",
        "prefill x",
        "frame x",
        "code2wav x",
        "total x",
        "first audio x",
        "of the bandwidth",
        "real-time factor",
    ]
    columns += [f"{given.streams} streams x one", f"{given.streams} streams x official", "codes equal"]
    columns += ["talker logits", "predictor logits", "talker choices", "predictor choices", "MB"]
    print(report.table(columns, rows))


if __name__ == "__main__":
    main()
