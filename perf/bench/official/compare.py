"""Ours as a bare engine against the official qwen-tts 0.1.1: same checkpoint, prompts, threads and process, in turns.

fp32 codes must be equal before anything is timed. Speech is in-context cloning of the shipped clip, greedy, of a fixed
number of frames; every frame is 80 ms of speech. The voice's prompt is made beforehand, as for a registered voice.

    first audio     from the request to the first samples; the official package returns all samples at the end
    prefill         talker over the prompt
    frame           a step of talker and code predictor, the first frame left out
    code2wav        the codec decoder, over the number of frames that it decoded
    primed          what it saves that ours has decoded the reference before: the official package does it each time
    total           all of it
    real-time       all of it over the length of the speech

The official package runs in fp32 and in bf16, and speaks several texts as one call with lists; ours is compared with
each, every run with those beside it. Memory is that of a separate process after loading and one speech.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from perf.bench import report
from perf.bench.engine import Ours
from perf.bench.families.family import frame_bytes
from perf.bench.families.qwen3_tts import Qwen3TTS
from perf.bench.machine import bandwidth
from perf.bench.official.deviation import compare, forced_logits
from perf.bench.official.peers import FRAME_SECONDS, Official
from perf.bench.spent import MEASURES, Spent
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint, make_endless
from voice_clone.families.qwen3_tts.text import Prompt
from voice_clone.settings import PRECISIONS
from voice_clone_server import guard

OFFICIAL = "official"
RATIOS = ("prefill", "frame", "code2wav", "primed", "total", "first_audio")


def memory(folder: Path, name: str, frames: int) -> float:
    """Megabytes of a process that has loaded one implementation and spoken."""
    command = [sys.executable, "-m", "perf.bench.official.compare", "--checkpoint", str(folder)]
    command += ["--frames", str(frames), "--memory-of", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=guard.marked())
    return float(done.stdout.split()[-1])


def speak_once(folder: Path, name: str, frames: int) -> None:
    """Print this process's megabytes after one speech."""
    if name == OFFICIAL:
        Official(folder).speak(frames)
    else:
        ours = Ours(Qwen3TTS, folder, name)  # type: ignore[arg-type]
        ours.speak(ours.model.a_prompt(), frames)
    print(psutil.Process().memory_info().rss / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="perf/compare_official", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=("tiny", "0.6b", "1.7b"), default="tiny", help="of a random checkpoint")
    parser.add_argument("--checkpoint", type=Path, help="this checkpoint instead")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--streams", type=int, default=4, help="side by side, for the throughput")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory, which starts processes")
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
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
    rivals = Rivals(official, Official(folder, dtype=torch.bfloat16))
    item = official.items[0]
    expected, _ = official.speak(given.frames)
    reference = item.ref_code.numpy().astype(np.int32), item.ref_spk_embedding.numpy()
    exact = Ours(Qwen3TTS, folder, "fp32")
    prompt = exact.model.prompt(reference[1], reference[0])
    forced = forced_logits(exact.model.talker, prompt, expected)
    figures: dict[str, Any] = {}
    for precision in given.precision:
        ours = exact if precision == "fp32" else Ours(Qwen3TTS, folder, precision)
        codes, _ = ours.speak(prompt, given.frames)
        if precision == "fp32" and not np.array_equal(codes, expected):
            raise SystemExit("the fp32 codes are not the official ones: nothing was timed")
        bytes_read = frame_bytes(ours.model.talker)
        figures[precision] = {
            "equal_frames": int((codes == expected).all(axis=1).cumprod().sum()),
            "deviation": asdict(compare(forced, forced_logits(ours.model.talker, prompt, expected))),
            "bytes_a_frame": bytes_read,
            **timed(rivals, partial(_spent, ours, prompt, given.frames), bytes_read, given),
        }
        if ours is not exact:
            del ours
        _write(figures, given)  # a long run that is stopped leaves its figures
        print(f"{precision}: measured", file=sys.stderr)
    if not given.no_memory:
        figures[OFFICIAL] = {"megabytes": memory(folder, OFFICIAL, 2)}
        for precision in given.precision:
            figures[precision]["megabytes"] = memory(folder, precision, 2)
    show(figures, given)
    _write(figures, given)


def _write(figures: dict[str, Any], given: argparse.Namespace) -> None:
    report.write(given.output, {"frames": given.frames, "threads": given.threads, "figures": figures})


def _spent(ours: Ours[Qwen3TTS], prompt: Prompt, frames: int, streams: int) -> Spent:
    return ours.speak(prompt, frames, streams)[1]


@dataclass(frozen=True, eq=False)
class Rivals:
    """The official package in both types."""

    fp32: Official
    bf16: Official


def timed(rivals: Rivals, speak: Callable[[int], Spent], bytes_read: int, given: argparse.Namespace) -> dict[str, Any]:
    """Runs in turns; ratios of neighbours. Of memory, the highest rate in 0.3 s just before and just after a speech."""
    spent: dict[str, list[Spent]] = {name: [] for name in ("fp32", "bf16", "list", "list of bf16", "ours", "together")}
    reads = []
    for _ in range(given.runs):
        spent["fp32"].append(rivals.fp32.speak(given.frames)[1])
        spent["bf16"].append(rivals.bf16.speak(given.frames)[1])
        before = bandwidth(0.3)
        spent["ours"].append(speak(1))
        reads.append((before + bandwidth(0.3)) / 2)
        if given.streams > 1:
            spent["list"].append(rivals.fp32.speak(given.frames, given.streams)[1])
            spent["list of bf16"].append(rivals.bf16.speak(given.frames, given.streams)[1])
            spent["together"].append(speak(given.streams))
    ours, together, speech = spent["ours"], spent["together"], given.frames * FRAME_SECONDS

    def totals(theirs: str, of: list[Spent]) -> dict[str, float]:
        return report.summary([a.total / b.total for a, b in zip(spent[theirs], of, strict=True)])

    return {
        "official": {name: report.summary([getattr(each, name) for each in spent["fp32"]]) for name in MEASURES},
        "official_bf16": {name: report.summary([getattr(each, name) for each in spent["bf16"]]) for name in MEASURES},
        "ours": {name: report.summary([getattr(each, name) for each in ours]) for name in MEASURES},
        "ratios": ratios(spent["fp32"], ours),
        "ratios_to_bf16": ratios(spent["bf16"], ours),
        "real_time": report.summary([each.total / speech for each in ours]),
        "official_real_time": report.summary([each.total / speech for each in spent["fp32"]]),
        "streams": given.streams,
        "throughput": report.summary(
            [given.streams * alone.total / all_.total for alone, all_ in zip(ours, together, strict=False)]
        ),
        "throughput_to_list": totals("list", together),
        "throughput_to_list_of_bf16": totals("list of bf16", together),
        "bytes_a_second": report.summary(reads),
        "bandwidth_share": report.summary(
            [bytes_read / each.frame / rate for each, rate in zip(ours, reads, strict=True)]
        ),
    }


def ratios(theirs: list[Spent], ours: list[Spent]) -> dict[str, dict[str, float]]:
    """How many times as fast ours is, by what is measured."""
    pairs = list(zip(theirs, ours, strict=True))
    found = {name: [getattr(a, name) / getattr(b, name) for a, b in pairs] for name in MEASURES}
    found["code2wav"] = [a.code2wav / a.decoded / (b.code2wav / b.decoded) for a, b in pairs]
    found["primed"] = [a.decoded / b.decoded for a, b in pairs]
    return {name: report.summary(values) for name, values in found.items()}


def show(figures: dict[str, Any], given: argparse.Namespace) -> None:
    def middle(found: dict[str, float]) -> str:
        return f"{found['p50']:.3g} ({found['min']:.3g} to {found['max']:.3g})" if found["n"] else ""

    rows = []
    for precision in given.precision:
        of = figures[precision]
        rows.append(
            [
                precision,
                *(middle(of["ratios"][name]) for name in RATIOS),
                middle(of["ratios_to_bf16"]["total"]),
                middle(of["bandwidth_share"]),
                middle(of["real_time"]),
                middle(of["throughput"]),
                middle(of["throughput_to_list"]),
                middle(of["throughput_to_list_of_bf16"]),
                f"{of['equal_frames']} of {given.frames}",
                *(f"{of['deviation'][name]:.2g}" for name in ("talker", "predictor")),
                *(f"{of['deviation'][name]:.1%}" for name in ("talker_choices", "predictor_choices")),
                of.get("megabytes"),
            ]
        )
    first = figures[given.precision[0]]
    print(
        f"\n{given.threads} threads, {given.frames} frames, median of {given.runs} (least to most). Official: "
        f"{1e3 * first['official']['frame']['p50']:.0f} ms a frame (bf16: "
        f"{1e3 * first['official_bf16']['frame']['p50']:.0f}), real-time factor "
        f"{first['official_real_time']['p50']:.3g}, {figures.get(OFFICIAL, {}).get('megabytes', 0):.0f} MB.\n"
    )
    columns = ["precision", *(f"{name.replace('_', ' ')} x" for name in RATIOS), "total x bf16", "of the bandwidth"]
    columns += ["real-time factor", f"{given.streams} streams x one", f"{given.streams} streams x a list of them"]
    columns += ["the same in bf16", "codes equal"]
    columns += ["talker logits", "predictor logits", "talker choices", "predictor choices", "MB"]
    print(report.table(columns, rows))


if __name__ == "__main__":
    main()
