"""Ours against the official code of a family: the same weights, voice, text, threads and process, in turns.

Ours is the bare stages, as a server's models run them. Both speak behind the shipped clip, as a registered voice: the
likeliest frames, or those of the same noise. In fp32 ours must give the official frames and samples before anything is
timed. Medians of the runs, in ms:

    encode       of the clip, what is kept of it; once
    first audio  from the request to the first samples
    prompt       to the first frame
    frame        a later one
    decode       of a frame to its samples
    total        of the speech
    CPU          of all threads in it, which other processes of the machine hardly change
    x            official total over ours in the same turn: in fp32; in its other type

A large `--streams` shows what ours gains by speaking side by side; official code that takes no lists is left out there.
"""

from __future__ import annotations

import argparse
import importlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from perf.bench import report
from perf.bench.official.comparison import MEASURES, Asked, Official, Ours, Seconds, Spoken, ask
from tools.families.toolkit import checkpoint_maker
from voice_clone.native.thread_pool import thread_pool, use_threads
from voice_clone.settings import PRECISIONS
from voice_clone_server import guard
from voice_clone_server.families.cards import card_of

FAMILIES = ("qwen3_tts", "fish_speech", "voxtral", "voxcpm2", "cosyvoice3", "omnivoice", "pocket_tts")


def adapter(family: str) -> type[Official]:
    """That of a family."""
    found: type[Official] = importlib.import_module(f"perf.bench.official.{family}").Adapter
    return found


def check(asked: Asked, official: type[Official], ours: Spoken, theirs: Spoken) -> None:
    """End the process if the two did not speak the same."""
    count = min(len(ours.frames), len(theirs.frames))
    if count < asked.frames - 1 or not same(ours.frames[:count], theirs.frames[:count], official.tolerance):
        raise SystemExit("the frames differ: nothing is timed")
    if ours.samples is not None and theirs.samples is not None:
        a, b = (official.compared(each.samples, len(asked.plan.context)) for each in (ours, theirs))  # type: ignore[arg-type]
        count = min(len(a), len(b))
        if not same(a[:count], b[:count], official.tolerance):
            raise SystemExit("the samples differ: nothing is timed")


def same(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], tolerance: float) -> bool:
    """Whether codes are equal, or numbers within a part of their spread."""
    if ours.dtype.kind != "f":
        return np.array_equal(ours, theirs)
    return bool(np.abs(ours - theirs).max() <= tolerance * theirs.std())


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The medians of each row, and ratios of neighbours."""
    card, chosen = card_of(given.family), adapter(given.family)
    assert card is not None
    asked, encode = ask(card[0], chosen, folder, given.frames, given.seconds, dict(given.option))
    officials = {f"official {dtype}": chosen(folder, asked, dtype) for dtype in chosen.dtypes}
    first = next(iter(officials.values()))
    ours = {precision: Ours(card[0], folder, precision, given.streams) for precision in given.precision}
    for precision, engine in ours.items():
        warm_up = engine.speak(asked, given.streams)  # compiles what was never compiled
        if precision == "fp32":
            check(asked, chosen, warm_up, first.speak(given.frames, 1))
    single: dict[str, Seconds] = {}
    if asked.waveform is not None and (theirs := first.encode(asked.waveform)) is not None:
        single = {next(iter(officials)): {"encode": theirs}, "fp32": {"encode": encode}}
    runs: defaultdict[str, list[Seconds]] = defaultdict(list)
    equal: dict[str, int] = {}
    for _ in range(given.runs):
        spoken = {name: each.speak(given.frames, 1) for name, each in officials.items()}
        spoken |= {name: each.speak(asked, 1) for name, each in ours.items()}
        if (streams := given.streams) > 1:
            together = officials if chosen.lists else {}
            spoken |= {f"{name} x {streams}": each.speak(given.frames, streams) for name, each in together.items()}
            spoken |= {f"{name} x {streams}": each.speak(asked, streams) for name, each in ours.items()}
        for name, speech in spoken.items():
            runs[name].append(speech.seconds)
        expected = next(iter(spoken.values())).frames
        equal = {name: equal_frames(spoken[name].frames, expected) for name in ours}
    rows: dict[str, Any] = {}
    for name, each in runs.items():
        rows[name] = {key: report.summary([run[key] for run in each]) for key in each[0]} | single.get(name, {})
        if name in equal:
            rows[name]["equal frames"] = equal[name]
        beside = name.partition(" x ")[2]
        for dtype in chosen.dtypes:
            rival = f"official {dtype}" + (f" x {beside}" if beside else "")
            if rival in runs and not name.startswith("official"):
                pairs = zip(runs[rival], each, strict=True)
                rows[name][f"times {dtype}"] = report.summary([theirs["total"] / own["total"] for theirs, own in pairs])
    return rows


def equal_frames(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> int:
    """How many of the first frames are equal to the last bit."""
    count = min(len(ours), len(theirs))
    return int((ours[:count] == theirs[:count]).all(axis=1).cumprod().sum())


def show(given: argparse.Namespace, rows: dict[str, Any]) -> None:
    """Print them."""

    def cell(found: Any, scale: float = 1) -> Any:
        return scale * found["p50"] if isinstance(found, dict) else None if found is None else scale * found

    chosen = adapter(given.family)
    dtypes = chosen.dtypes
    lines = [
        [
            name,
            *(cell(row.get(measure), 1e3) for measure in MEASURES),
            *(cell(row.get(f"times {dtype}")) for dtype in dtypes),
            row.get("equal frames"),
        ]
        for name, row in rows.items()
    ]
    threads = thread_pool().threads
    print(f"\n{given.family}, {chosen.source}: {given.frames} frames, {threads} threads, {given.runs} runs\n")
    print(report.table(["ms", *MEASURES, *(f"x {dtype}" for dtype in dtypes), "equal frames"], lines))


def option(text: str) -> tuple[str, Any]:
    """NAME=NUMBER."""
    name, _, value = text.partition("=")
    return name, float(value) if "." in value else int(value)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/compare_official", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", choices=FAMILIES, help="compared with what its adapter in perf/bench/official names")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--checkpoint", type=Path, help="with its weights in one file")
    source.add_argument("--shape", default="tiny", help="of a random checkpoint (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=24, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, help="of the clip (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--streams", type=int, default=1, help="side by side, too (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=list(PRECISIONS))
    parser.add_argument(
        "--option", type=option, action="append", default=[], metavar="NAME=NUMBER", help="of the family"
    )
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    if given.threads:
        use_threads(given.threads)
    with guard.temporary_folder() as scratch:
        folder = given.checkpoint or scratch / "checkpoint"
        if given.checkpoint is None:
            checkpoint_maker(given.family).make_checkpoint(given.shape, 0, folder)
        rows = measure(given, folder)
    show(given, rows)
    used = {"family": given.family, "frames": given.frames, "streams": given.streams, "threads": thread_pool().threads}
    report.write(given.output, {**used, "figures": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
