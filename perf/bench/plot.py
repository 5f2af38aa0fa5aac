"""Draws the figures of perf/load, perf/stages and the soak test, from their JSON files.

perf/plot load RESULT.json [RESULT.json ...] -o load.svg     first audio and throughput against the callers
perf/plot stages RESULT.json -o stages.svg                   each stage's time beside its floor
perf/plot soak RESULT.json -o soak.svg                       the memory of each process over time
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from voice_clone_program.whole_file import whole_file

matplotlib.use("svg")
import matplotlib.pyplot as plt

OURS, FLOOR = "#1f5fa8", "#b9cbe0"
SERIES = ("#1f5fa8", "#d9822b", "#3a8f5c", "#8a4fa3")


def load(files: Sequence[Path]) -> Any:
    """First audio (p50 and p95) and audio seconds a second, a line for each file, named as the file."""
    figure, (first, throughput) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for file, colour in zip(files, SERIES, strict=False):
        levels = json.loads(file.read_text(encoding="utf-8"))["levels"]
        callers = [float(level["load"].split()[0]) for level in levels]
        times = {p: [level["first_audio_s"][p] for level in levels] for p in ("p50", "p95")}
        first.plot(callers, times["p50"], "o-", color=colour, label=f"{file.stem}, median")
        first.plot(callers, times["p95"], "o:", color=colour, alpha=0.6, label=f"{file.stem}, 95th percentile")
        throughput.plot(
            callers, [level["audio_seconds_per_second"] for level in levels], "o-", color=colour, label=file.stem
        )
    for axes, label in ((first, "seconds to the first audio"), (throughput, "seconds of audio made a second")):
        axes.set(xlabel="callers at once", ylabel=label)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    return figure


def stages(files: Sequence[Path]) -> Any:
    """Of each stage the larger of its floors and the measured median, joined by a line; a panel for each precision."""
    found = {name: rows for file in files for name, rows in json.loads(file.read_text())["stages"].items()}
    heights = [len(rows) + 1 for rows in found.values()]
    figure, panels = plt.subplots(
        len(found),
        1,
        figsize=(9, 0.24 * sum(heights) + 0.3 * len(found)),
        height_ratios=heights,
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    least, most = float("inf"), 0.0
    for axes, (name, rows) in zip(panels[:, 0], found.items(), strict=True):
        names = [row["stage"] for row in rows]
        floors = [max(row["bandwidth_ms"], row["compute_ms"]) for row in rows]
        medians = [row["ms"]["p50"] for row in rows]
        axes.hlines(names, floors, medians, color=FLOOR, linewidth=2)
        axes.plot(floors, names, "|", color=OURS, markersize=9, markeredgewidth=2, label="floor of this machine")
        axes.plot(medians, names, "o", color=OURS, markersize=5, label="measured, median")
        axes.set_title(name, loc="left", fontsize=9, fontweight="bold")
        axes.set(xscale="log", ylim=(len(names) - 0.5, -0.5))
        axes.grid(axis="x", alpha=0.3)
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_formatter("{x:g}")
        least, most = min(least, *floors), max(most, *medians)
    axes.set_xlim(least / 1.5, most * 1.5)
    axes.set_xlabel("milliseconds")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", frameon=False, fontsize=8, ncols=2)
    return figure


def soak(files: Sequence[Path]) -> Any:
    """Megabytes of each process over the minutes of a soak; a panel for each process, each with its own scale."""
    found = json.loads(files[0].read_text(encoding="utf-8"))["memory"]
    names = sorted(found[-1]["bytes"])
    rows = -(-len(names) // 2)
    figure, panels = plt.subplots(rows, 2, figsize=(9, 1.7 * rows), sharex=True, squeeze=False, layout="constrained")
    for name, axes in zip(names, panels.flat, strict=False):
        points = [(look["at_s"] / 60, look["bytes"][name] / 1e6) for look in found if name in look["bytes"]]
        axes.plot(*zip(*points, strict=True), color=OURS, linewidth=1)
        axes.set_title(f"{name}, MB", loc="left", fontsize=9)
        axes.set_ylim(0, 1.15 * max(megabytes for _, megabytes in points))
        axes.grid(alpha=0.3)
    for axes in panels.flat[len(names) :]:
        axes.remove()
    figure.supxlabel("minutes", fontsize=9)
    return figure


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/plot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("load", "stages", "soak"))
    parser.add_argument("files", type=Path, nargs="+", metavar="RESULT.json")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    matplotlib.rcParams.update({"font.size": 9, "svg.hashsalt": "voice-clone", "svg.fonttype": "none"})
    figure = {"load": load, "stages": stages, "soak": soak}[given.kind](given.files)
    with whole_file(given.output) as file:
        figure.savefig(file, format=given.output.suffix[1:] or None, metadata={"Date": None})


if __name__ == "__main__":
    main()
