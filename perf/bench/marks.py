"""What the mark of synthetic speech survives, what is taken for marked and is not, what it costs, what one hears of it.

The speeches are those of the demo's checkpoint, two sentences each, in the voices of its two clips. Each is looked at
as it is and marked, after each of the changes of a sound on its way. With --clips there are recordings besides: the
same is done with each WAV, FLAC, OGG or MP3 file of a folder.

    detected      share of the marked ones that are found
    false alarms  share of the others that are taken for marked
    lowest        confidence of a marked one; highest: of another one
    SNR           decibels; what the mark changes counts as noise
    words wrong   by pocketsphinx, each word one of 20, and any word; of the first speeches alone

A speech of 6 s takes 12 s of a core, nearly all of it in the detector's network, and 14 s more where it is heard. What
is found of each is kept in the folder --keep, so a run that was stopped, or ended after --minutes, goes on there. Exit
code 1: sounds are left.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from perf.bench import report
from perf.bench.mark_figures import RATE, Call, file_of, find
from tools.demo_voice.side_by_side import each_done
from voice_clone.marking.detection import THRESHOLD
from voice_clone.marking.marker import PerthMarker

CHUNK = 1920  # samples of a frame of 80 ms
REPEATS = 50
KINDS = {"speech": "speeches", "recording": "recordings"}
"""Of sounds, and what the table calls them."""


def calls_of(folder: Path, speeches: int, heard: int, clips: Path | None) -> list[Call]:
    """All that is to be found, in the order in which it is looked for."""
    files = sorted(clips.iterdir()) if clips else []
    return [
        *((folder, "speech", number, None) for number in range(speeches)),
        *((folder, "recording", number, path) for number, path in enumerate(files)),
        *((folder, "heard", number, None) for number in range(min(heard, speeches))),
    ]


def is_done(call: Call) -> bool:
    """Whether the folder has the figures."""
    folder, kind, number, _ = call
    return file_of(folder, kind, number).exists()


def do(calls: Sequence[Call], jobs: int, minutes: float | None) -> None:
    """Find what is left, until so many minutes are over."""
    began = time.monotonic()
    left = [call for call in calls if not is_done(call)]

    def timely() -> Iterator[Call]:
        return takewhile(lambda _: minutes is None or time.monotonic() - began < 60 * minutes, left)

    for count, _ in enumerate(each_done(jobs, find, timely()), start=len(calls) - len(left) + 1):
        print(f"{count} of {len(calls)} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def read(calls: Sequence[Call], kind: str) -> list[dict[str, Any]]:
    """The figures of a kind that are there."""
    done = [call for call in calls if call[1] == kind and is_done(call)]
    return [json.loads(file_of(*call[:3]).read_text(encoding="utf-8")) for call in done]


def survival(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By change: how often the mark is found in marked sounds and in the others, and how surely."""
    found = {}
    for name in rows[0]["confidences"] if rows else ():
        others, with_mark = np.array([row["confidences"][name] for row in rows]).T
        found[name] = {
            "detected": float(np.mean(with_mark >= THRESHOLD)),
            "lowest": float(with_mark.min()),
            "mean": float(with_mark.mean()),
            "false_alarms": float(np.mean(others >= THRESHOLD)),
            "highest": float(others.max()),
        }
    return found


def heard(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """SNR and words wrong, without the mark and with it."""
    words = {key: np.sum([row["words"][key] for row in rows], axis=0) for key in (rows[0]["words"] if rows else ())}
    return {
        "snr_db": report.summary([row["snr_db"] for row in rows]),
        "words": {key: {"wrong": int(wrong), "words": int(count)} for key, (wrong, count) in words.items()},
    }


def cost(marker: PerthMarker) -> dict[str, float]:
    """Milliseconds of one thread for a second of one stream's audio, in chunks of 80 ms, by streams in a batch."""
    found = {}
    for batch in (1, 4, 64):
        streams = [marker.open() for _ in range(batch)]
        chunks = [np.full(CHUNK, 0.1, np.float32)] * batch
        marker.mark(streams, chunks)
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            marker.mark(streams, chunks)
            times.append(time.perf_counter() - began)
        found[str(batch)] = 1e3 * float(np.median(times)) * RATE / CHUNK / batch
    return found


def show(found: Mapping[str, Any]) -> None:
    """Print the tables."""
    for kind, rows in found["survival"].items():
        print(f"\n{found['sounds'][kind]} {kind}:\n")
        columns = ("change", "detected", "lowest", "false alarms", "highest")
        names = [name.replace(" ", "_") for name in columns[1:]]
        print(report.table(columns, [[name, *(row[each] for each in names)] for name, row in rows.items()]))
    for key, value in found.items():
        if key not in ("survival", "sounds"):
            print(f"\n{key}: {value}")


def run(given: argparse.Namespace, folder: Path) -> int:
    """Measure, and print what is known."""
    calls = calls_of(folder, given.speeches, given.heard, given.clips)
    do(calls, given.jobs, given.minutes)
    torch.set_num_threads(1)
    rows = {name: found for kind, name in KINDS.items() if (found := read(calls, kind))}
    listened = read(calls, "heard")
    figures = {
        "threshold": THRESHOLD,
        "commits": sorted({row["commit"] or "" for each in (*rows.values(), listened) for row in each}),
        "sounds": {name: len(each) for name, each in rows.items()},
        "cost_ms": cost(PerthMarker(RATE)),
        "heard": heard(listened),
        "survival": {name: survival(each) for name, each in rows.items()},
    }
    show(figures)
    report.write(given.output, figures)
    left = sum(not is_done(call) for call in calls)
    if left:
        print(f"{left} of {len(calls)} are left: the same call with --keep {folder} goes on", file=sys.stderr)
    return 1 if left else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/marks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speeches", type=int, default=100)
    parser.add_argument("--heard", type=int, default=25, help="of the speeches, by pocketsphinx")
    parser.add_argument("--clips", type=Path, metavar="DIR", help="recordings besides")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keeps what is found, and is not found again")
    parser.add_argument("--minutes", type=float, help="begin no further sound after that time; needs --keep")
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    if given.minutes is not None and given.keep is None:
        parser.error("--minutes needs --keep DIR: without it what was found would be lost")
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
        return run(given, given.keep)
    with TemporaryDirectory() as folder:
        return run(given, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
