"""Ours as a bare engine against other engines of Qwen3-TTS on a CPU: same weights, text, voice, threads and frames.

    start      from the start of the process until the engine has loaded its model
    ready      start, and a first speech of two frames; ours has then its compiled code
    prompt     the talker over the prompt, of so many positions
    frame      a step of talker and code predictor; ours and qwen-tts without the first frame
    decoder    the codec decoder, over the number of frames
    whole      from the request to the last sample; ours from the tokens of the text on
    MB         the most memory of the process, with the pages of files that it maps
    same       frames, from the first on, that are the same sound as ours of that precision

Each speech is a process of its own in the environment that has the engine. They take turns; one of each before is not
timed. The weights are random, in the official format, and never end a speech; each engine has its own converter. The
voice is an embedding alone, the codes are the likeliest, and the number of frames is fixed.

Engines do not read the same prompt: qwentts and qwen-tts put the whole text before the first frame, vox gives the
talker one token a frame. Ours does either, "text along" is the second; each is compared with the one whose prompt is
about as long. In int4 none has the same bits: ours and vox q4full have 4 for all matrices, vox q4 for the talker's
alone and 8 for the code predictor's, qwentts Q4_K_M 4 to 6. The floor is the time to read our weights of a frame once.

Nothing is installed here. Give the Python of an environment that has an engine, by plain pip:

    vox        vox-tts 0.19.5
    qwentts    realtimetts-qwen-native-cpu 0.4.2, gguf, safetensors, torch; with --qwentts-source, for its wheel has no
               converter
    qwen-tts   is in .venv

llama.cpp's llama-tts must be built and its converter changed for a random tokenizer; perf/records/EXPERIMENTS.md has a
comparison with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from perf.bench import report
from perf.bench.reference import CLIP, TEXT
from perf.bench.rivals.contestants import Contestant, Failed, Ours, OursTextAlong, all_contestants, finish
from perf.bench.rivals.spoken import WARM_UP_FRAMES, Spoken
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint, make_endless
from voice_clone.audio import decode, resample
from voice_clone.families.qwen3_tts.encoder import load_speaker_encoder
from voice_clone.settings import PRECISIONS, Settings
from voice_clone_server import guard

MEASURES = ("start", "ready", "prompt", "frame", "decoder", "whole")
COMPARED = ("prompt", "frame", "whole")
UNITS = {"start": 1.0, "ready": 1.0, "prompt": 1e3, "frame": 1e3, "decoder": 1e3, "whole": 1.0}  # s or ms
COLUMNS = ("", "start s", "ready s", "prompt ms", "of", "frame ms", "floor", "decoder ms", "whole s", "MB", "same")
RATE = 24_000  # Hz, of the speaker encoder
REPETITION_PENALTY = 1.05  # the default of all of them
OWN = ("ours", "ours, text along")
ENGINES = ("qwentts", "vox", "qwen-tts")
SAME = 0.05  # of a frame's RMS: the difference of samples that are the same sound

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """What is compared: an engine at one of its precisions.

    Attributes:
        precision: ours, whose like it is.
        kind: what the engine calls it.
    """

    contestant: Contestant
    precision: str
    kind: str

    @property
    def label(self) -> str:
        return f"{self.contestant.name} {self.kind}"


@dataclass
class Row:
    """The speeches of a case.

    Attributes:
        reason: why there are none.
        starts: seconds from the start of each process until it had loaded.
        same: see the module's description; None: not compared.
    """

    case: Case
    reason: str | None = None
    starts: list[float] = field(default_factory=list)
    spoken: list[Spoken] = field(default_factory=list)
    same: int | None = None

    def figures(self) -> dict[str, Any]:
        """As JSON has them."""
        case = self.case
        found: dict[str, Any] = {"engine": case.contestant.name, "precision": case.precision, "kind": case.kind}
        if not self.spoken:
            return {**found, "reason": self.reason}
        last = self.spoken[-1]
        values = {name: [getattr(each, name) for each in self.spoken] for name in ("prompt", "frame", "decoder")}
        values["start"] = self.starts
        values["ready"] = [start + each.warm_up for start, each in zip(self.starts, self.spoken, strict=True)]
        values["whole"] = [each.whole for each in self.spoken]
        values["megabytes"] = [each.megabytes for each in self.spoken]
        floors = [each.floor for each in self.spoken if each.floor is not None]
        return {
            **found,
            "version": last.version,
            "positions": last.positions,
            "same": self.same,
            **{name: report.summary(each) for name, each in values.items()},
            "floor": report.summary(floors),
        }


class Speeches:
    """How a case speaks: of which checkpoint, with what voice, how long."""

    def __init__(self, folder: Path, shape: str, frames: int) -> None:
        self.folder, self.frames = folder / shape, frames
        self._clip, self._embedding = self.folder / "voice.wav", self.folder / "voice.npy"
        if not (self.folder / "endless").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / "checkpoint").exists():
                make_checkpoint(shape, 0, self.folder / "checkpoint")
            make_endless(self.folder / "checkpoint", self.folder / "endless")
        if not self._embedding.exists():
            self._make_voice()

    def _make_voice(self) -> None:
        import soundfile

        clip = decode(CLIP.read_bytes())
        waveform = resample(clip.waveform, clip.sample_rate, RATE)
        soundfile.write(self._clip, waveform, RATE)
        given = {"VOICE_CLONE_CHECKPOINT_DIR": str(self.folder / "endless"), "VOICE_CLONE_DEVICE": "cpu"}
        encoder, _, _ = load_speaker_encoder(Settings({}, given))
        np.save(self._embedding, encoder.embed(waveform))

    def output(self, case: Case) -> Path:
        """The samples of the last speech of a case, float32 [samples]."""
        return self.folder / f"{case.label.replace(', ', '-').replace(' ', '-')}.npy"

    def speak(self, case: Case, threads: int, frames: int | None = None) -> tuple[float, Spoken]:
        """Seconds until the engine had loaded, and the speech.

        Raises:
            Failed: the engine cannot speak.
        """
        contestant = case.contestant
        request = {
            "model": contestant.model(case.kind, self.folder),
            "threads": threads,
            "frames": frames or self.frames,
            "text": TEXT,
            "text_first": not isinstance(contestant, OursTextAlong),
            "repetition_penalty": REPETITION_PENALTY,
            "clip": str(self._clip),
            "embedding": str(self._embedding),
            "output": str(self.output(case)),
        }
        self.output(case).unlink(missing_ok=True)
        began = time.monotonic()
        spoken = Spoken(**json.loads(finish(contestant.command(json.dumps(request))).splitlines()[-1]))
        return spoken.loaded - began, spoken

    def same(self, case: Case, other: Case) -> int | None:
        """How many frames of two speeches are the same sound, from the first on; None: one of them has no samples."""
        ours, theirs = self.output(case), self.output(other)
        if not (ours.exists() and theirs.exists()):
            return None
        return same_frames(np.load(ours), np.load(theirs), self.frames)


def same_frames(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], frames: int) -> int:
    """How many frames are the same sound, from the first on."""
    if ours.size != theirs.size:
        return 0
    a, b = (each.reshape(frames, -1).astype(np.float64) for each in (ours, theirs))
    error, loudness = (np.sqrt(np.square(each).mean(axis=1)) for each in (a - b, a))
    return int((error < SAME * loudness).cumprod().sum())


def cases(contestants: list[Contestant], precision: str) -> list[Case]:
    """Those of a precision; an engine that has no like of it is left out."""
    return [Case(each, precision, kind) for each in contestants for kind in each.kinds.get(precision, ())]


def measure(speeches: Speeches, table: list[Case], threads: int, runs: int) -> list[Row]:
    """All cases of a precision, in turns."""
    rows = [Row(case, case.contestant.missing) for case in table]
    for row in rows:
        attempt(speeches, row, threads, timed=False)
    for number in range(runs):
        for row in rows:
            print(f"{row.case.label}, {threads} threads, run {number + 1} ...", file=sys.stderr)
            attempt(speeches, row, threads, timed=True)
    return rows


def attempt(speeches: Speeches, row: Row, threads: int, timed: bool) -> None:
    """A speech of a case, unless it cannot speak."""
    if row.reason is not None:
        return
    try:
        start, spoken = speeches.speak(row.case, threads, None if timed else WARM_UP_FRAMES)
    except Failed as failed:
        row.reason, row.spoken = f"failed: {failed}", []
        return
    if timed:
        row.starts.append(start)
        row.spoken.append(spoken)


def compare_sound(speeches: Speeches, rows: list[Row]) -> None:
    """Fill in `same`."""
    own = [row for row in rows if isinstance(row.case.contestant, Ours) and row.spoken]
    for row in rows:
        if row.spoken and row not in own and own:
            ours = nearest(row.spoken[-1].positions, {each.spoken[-1].positions: each for each in own})
            row.same = speeches.same(ours.case, row.case)


def nearest(positions: int, own: Mapping[int, T]) -> T:
    """That of ours whose prompt is about as long as one of `positions`; `own`: ours by the length of their prompts."""
    return own[min(own, key=lambda each: abs(each - positions))]


def behind(figures: list[dict[str, Any]]) -> list[str]:
    """Where another engine's median is below that of ours with about as long a prompt, a line for each."""
    lines = []
    for theirs in figures:
        if "reason" in theirs or theirs["engine"] in OWN:
            continue
        own = [each for each in figures if each["engine"] in OWN and each["precision"] == theirs["precision"]]
        alike = {each["positions"]: each for each in own if "reason" not in each}
        if not alike:
            continue
        ours = nearest(theirs["positions"], alike)
        for name in COMPARED:
            a, b = ours[name]["p50"], theirs[name]["p50"]
            if b < a:
                unit = "ms" if UNITS[name] > 1 else "s"
                floor = f"; floor {1e3 * ours['floor']['p50']:.3g} ms" if name == "frame" and ours["floor"]["n"] else ""
                lines.append(
                    f"{name}: {ours['engine']} {ours['kind']} {UNITS[name] * a:.3g} {unit}, {theirs['engine']} "
                    f"{theirs['kind']} {UNITS[name] * b:.3g} {unit} ({a / b:.3g} times as long){floor}"
                )
    return lines


def cells(figures: dict[str, Any]) -> list[Any]:
    """A line of the table, of an engine that has spoken; its columns are `COLUMNS`."""
    label = f"{figures['engine']} {figures['kind']}"

    def middle(name: str) -> str:
        unit, of = UNITS[name], figures[name]
        return f"{unit * of['p50']:.3g} ({unit * of['min']:.3g} to {unit * of['max']:.3g})"

    floor = 1e3 * figures["floor"]["p50"] if figures["floor"]["n"] else None
    times = {name: middle(name) for name in MEASURES}
    found: list[Any] = [label, times["start"], times["ready"], times["prompt"], figures["positions"], times["frame"]]
    return [*found, floor, times["decoder"], times["whole"], figures["megabytes"]["p50"], figures["same"]]


@contextlib.contextmanager
def busy(neighbours: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes that do nothing but compute, until the end of the block."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command, env=guard.marked()) for _ in range(neighbours)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(given: argparse.Namespace) -> dict[str, Any]:
    """All tables, each printed when it is measured: figures by number of threads."""
    speeches = Speeches(given.folder, given.shape, given.frames)
    contestants = all_contestants(given.vox, given.qwentts, given.qwentts_source)
    chosen = [each for each in contestants if each.name in OWN or each.name in given.engines]
    found: dict[str, Any] = {}
    for threads in given.threads:
        figures = []
        for precision in given.precision:
            table = cases(chosen, precision)
            for case in table:
                prepare(speeches, case)
            with busy(given.neighbour):
                rows = measure(speeches, table, threads, given.runs)
            compare_sound(speeches, rows)
            figures += [row.figures() for row in rows]
        found[f"{threads} threads"] = figures
        beside = f" beside {given.neighbour} busy processes" if given.neighbour else ""
        print(f"\n{threads} threads{beside}, {given.frames} frames, median of {given.runs} (least to most):\n")
        print(report.table(COLUMNS, [cells(each) for each in figures if "reason" not in each]))
        show(
            "Not compared:",
            [f"{each['engine']} {each['kind']}: {each['reason']}" for each in figures if "reason" in each],
        )
        show("Ours is behind in:", behind(figures))
        report.write(given.output, {**settings(given), "figures": found})  # also of a run that is stopped
    return found


def show(title: str, lines: list[str]) -> None:
    """A list under the table, if there is anything on it."""
    if lines:
        print("\n".join(["", title, *(f"- {line}" for line in lines)]), flush=True)


def prepare(speeches: Speeches, case: Case) -> None:
    """Convert what a case needs, before anything is timed; a converter that fails is reported when the case speaks."""
    if case.contestant.missing is None:
        with contextlib.suppress(Failed):
            case.contestant.model(case.kind, speeches.folder)


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """Those that the figures depend on."""
    return {name: getattr(given, name) for name in ("shape", "frames", "runs", "neighbour")}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/compare_rivals", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="keeps the checkpoint and what is converted: 25 GB")
    parser.add_argument("--shape", choices=("tiny", "0.6b"), default="0.6b", help="default: %(default)s")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="of ours")
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1], help="default: 2 1")
    parser.add_argument("--frames", type=int, default=24, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=list(ENGINES), help="beside ours")
    parser.add_argument("--vox", metavar="PYTHON", help="of an environment with vox-tts")
    parser.add_argument("--qwentts", metavar="PYTHON", help="of an environment with a CPU wheel of qwentts.cpp")
    parser.add_argument("--qwentts-source", type=Path, metavar="DIR", help="its sources, with build/quantize")
    parser.add_argument("--neighbour", type=int, default=0, metavar="N", help="busy processes beside; default: 0")
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    if given.frames <= WARM_UP_FRAMES:
        parser.error(f"--frames must be above {WARM_UP_FRAMES}")
    given.folder = given.folder.resolve()
    run(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
