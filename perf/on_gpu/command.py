"""The GPU path in one run: CUDA graphs equal eager steps, both are timed, then the whole server is tried.

    equal     graphs against eager: streams side by side, each of its own prompt, greedy, each step from the same past.
              fp32 codes must be equal but for ties (equality.py); hidden states and waveforms must agree within
              bounds, at each precision
    frame     talker and code predictor, over the number of frames, prompt and first frame left out
    code2wav  the codec decoder, over the number of frames
    first     from the request to the first samples, of all streams together, of a voice that is known

Then come our engine on the GPU against the one on the CPU, compared likewise; the decoder at other precisions
(decoder.py); the whole through Triton (server.py); a server on the GPU against one on the CPU (against_cpu.py).
`--phases` takes some of it; engines, cpu and decoder need neither a server nor its client.
`--server` tries the whole server alone, in one time limit: 8 minutes.
`--minutes M` adds minutes of load with the server's memory beside it; for it alone, give `--phases` without a phase.
At the end stands a table of the marks that the project set itself for Qwen3-TTS. The result file is written after each
phase, and with `--within` no phase begins after so many seconds: the result names those that are left out.

`--family` tries another one likewise; the result names what it lacks. Of
the released shape, the default, the checkpoint takes 25 GB of disk (Voxtral's 9) and some minutes, and a GPU should
have 80 GB; `--shape s2-pro-2` and `--shape 4b-2-encoder` have the same widths and few layers.

Speech is in-context cloning of a fixed number of frames, greedy unless it is "as served": then with the
usual draws, and each step is begun before the frames of the one before are seen. The engines take turns. The precision
is the talker's; our decoder is in fp32, as a server's. The official package of Qwen3-TTS, wholly in that precision,
and faster-qwen3-tts, where it is installed, speak one stream at a time. They are in the same process and have the same
switches of torch as ours: no TF32, no attention of cuDNN. Alone they may be faster.

Exit status: 0; 1 if something is not equal or no graph could be recorded; 2 if there is no GPU. `--device cpu` runs the
same code, with steps of fixed shapes instead of graphs.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

import torch

from perf.bench import report
from perf.bench.families import FAMILIES
from perf.on_gpu import decoder, engines, marks
from perf.on_gpu.phases import PHASES, SERVER, Phases
from tools.families.toolkit import checkpoint_maker
from voice_clone_server import guard

SETTINGS = ("family", "device", "shape", "frames", "runs", "seconds", "minutes", "within")  # that the result file has

SERVER_SECONDS = 480.0  # the time of --server


def main() -> int:
    given = arguments()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("There is no CUDA device here; --device cpu runs the same code without graphs.", file=sys.stderr)
        return 2
    maker = checkpoint_maker(given.family)
    found: dict[str, Any] = {
        **{name: getattr(given, name) for name in SETTINGS},
        "figures": {},
        "cpu": {},
        "decoder": {},
        "server": {},
        "codes": {},
        "failed": [],
        "marks": [],
    }
    progress = Phases(given.output, found, given.within)
    with guard.temporary_folder() as scratch:
        progress.begin("checkpoint")
        folder = given.checkpoint or scratch / "checkpoint"
        if given.checkpoint is None:
            maker.make_checkpoint(given.shape, 0, folder)
        endless = maker.make_endless(folder, scratch / "endless")
        with progress.ended_in_time() if given.server else contextlib.nullcontext():
            measure(endless, scratch, given, found, progress)
    found["failed"] = [*faults(found)]
    if given.family == marks.FAMILY:
        found["marks"] = marks.of(found)
    else:
        progress.leave_out("the marks", f"they are those of {marks.FAMILY}")
    progress.begin("end")
    show(given, found)
    return 1 if found["failed"] else 0


def arguments() -> argparse.Namespace:
    shapes = "; ".join(f"{', '.join(checkpoint_maker(name).SHAPES)} of {name}" for name in FAMILIES)
    parser = argparse.ArgumentParser(
        prog="perf/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--family", choices=tuple(FAMILIES), default="qwen3_tts")
    parser.add_argument("--shape", help=f"of a random checkpoint: {shapes}; by default 0.6b, s2-pro, 4b-encoder or 2b")
    parser.add_argument("--checkpoint", type=Path, help="this checkpoint instead")
    parser.add_argument("--phases", nargs="*", choices=PHASES, default=list(PHASES), help="only these")
    parser.add_argument("--precision", nargs="+", choices=tuple(engines.DTYPES), default=["fp32", "bf16"])
    parser.add_argument("--timed", nargs="*", choices=tuple(engines.DTYPES), default=["bf16"], help="of them")
    parser.add_argument("--frames", type=int, default=100, help="of a speech")
    parser.add_argument("--runs", type=int, default=5, help="at most, of each engine and number of streams")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64], help="streams in this process")
    parser.add_argument("--masked", action="store_true", help="engines: attention under masks, not by own lengths")
    parser.add_argument("--no-peers", action="store_true", help="only ours")
    parser.add_argument("--callers", nargs="+", type=int, default=[1, 64], help="at once, through Triton")
    parser.add_argument("--rates", nargs="*", type=float, default=[1.0, 20.0], help="requests a second, through Triton")
    parser.add_argument("--seconds", type=float, default=20.0, help="of load at each number of callers and rate")
    parser.add_argument("--minutes", type=float, default=0.0, help="of load by the most callers, with memory sampled")
    parser.add_argument("--within", type=float, help="seconds, after which no further phase begins")
    parser.add_argument(
        "--server",
        action="store_true",
        help=f"the whole server alone, within {SERVER_SECONDS:g} seconds or those of --within: first audio, then load "
        "by the most callers, then the rest; the result file has each figure when it comes",
    )
    parser.add_argument("-o", "--output", type=Path, help="the result file")
    given = parser.parse_args()
    if given.server:
        given.phases, given.within = list(SERVER), given.within or SERVER_SECONDS
        given.callers, given.rates = sorted(given.callers, reverse=True), sorted(given.rates, reverse=True)
        given.output = given.output or Path("server_figures.json")
    given.shape = FAMILIES[given.family].shape_of(given.shape, parser)
    return given


def measure(folder: Path, scratch: Path, given: argparse.Namespace, found: dict[str, Any], progress: Phases) -> None:
    """All phases; each puts its part into `found`."""
    if "engines" in given.phases:
        for precision in given.precision:
            if progress.begins(f"engines in {precision}"):
                found["figures"][precision] = engines.measure(folder, precision, given)
                engines.leave_the_gpu()
    if "cpu" in given.phases and progress.begins("engines on the device and on the CPU"):
        found["cpu"] = engines.against_cpu(folder, given)
        engines.leave_the_gpu()
    if "decoder" in given.phases and progress.begins("decoder at other precisions"):
        found["decoder"] = decoder.measure(folder, given)
        engines.leave_the_gpu()
    if given.minutes or {*SERVER} & {*given.phases}:
        from perf.on_gpu import server  # here, as below: the phases above do without a server and its client

        server.measure(folder, scratch, given, found["server"], progress)
    if "codes" in given.phases and progress.begins("codes, of servers on the device and on the CPU"):
        from perf.on_gpu import against_cpu

        found["codes"] = against_cpu.measure(FAMILIES[given.family], folder, scratch, given.device, given.frames)


def faults(found: dict[str, Any]) -> list[str]:
    """What must not be: other codes, errors, no graphs. A mark that is missed is no fault."""
    wrong = [f"engines in {name} are not equal" for name, of in found["figures"].items() if not of["passed"]]
    if found["cpu"] and not found["cpu"]["passed"]:
        wrong.append("the engine is not that of a CPU")
    if found["server"]:
        from perf.on_gpu import server

        wrong += server.faults(found["server"])
    if found["codes"]:
        from perf.on_gpu import against_cpu

        wrong += against_cpu.faults(found["codes"])
    return wrong


def show(given: argparse.Namespace, found: dict[str, Any]) -> None:
    if given.device == "cuda":
        print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.frames} frames, medians")
    for precision, figures in found["figures"].items():
        engines.show(precision, figures)
    if found["cpu"]:
        engines.show_cpu(found["cpu"])
    if found["decoder"]:
        decoder.show(found["decoder"], FAMILIES[given.family].chunk_frames[-1])
    if found["server"]:
        from perf.on_gpu import server

        server.show(found["server"])
    if found["codes"]:
        from perf.on_gpu import against_cpu

        against_cpu.show(found["codes"])
    if found["marks"]:
        marks.show(found["marks"])
    if found["left_out"]:
        print("\n" + report.table(["left out", "why"], [*found["left_out"].items()]))
    print("\n".join(f"FAILED: {fault}" for fault in found["failed"]) or "\nnothing failed")


if __name__ == "__main__":
    sys.exit(main())
