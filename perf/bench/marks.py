"""What the mark of synthetic speech survives, what is taken for marked and is not, what it costs, what one hears of it.

The speeches are those of the demo's checkpoint, two sentences each, in the voices of its two clips. Each is looked at
as it is and marked, after each of the changes of a sound on its way. With --clips there are recordings besides: the
same is done with each WAV, FLAC, OGG or MP3 file of a folder.

    detected      share of the marked ones that are found
    false alarms  share of the others that are taken for marked
    lowest        confidence of a marked one; highest: of another one
    SNR           decibels; what the mark changes counts as noise
    words wrong   by pocketsphinx, each word one of 20, and any word; of the first speeches alone
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray

from perf.bench import report
from perf.bench.sound_changes import CHANGES
from tools.demo import CLIP, SHIPPED
from tools.demo_voice import grammar
from tools.demo_voice.listening import Errors, Listener
from tools.demo_voice.qwen3_tts.bare_engine import BareEngine
from voice_clone.audio import resample
from voice_clone.marking.detection import THRESHOLD, PerthDetector
from voice_clone.marking.marker import PerthMarker

RATE = 24_000  # Hz
CHUNK = 1920  # samples of a frame of 80 ms
VOICES = (CLIP, CLIP.with_name("rms.wav"))
MOST_SECONDS = 10.0  # of a recording
REPEATS = 50

Samples = NDArray[np.float32]


def speeches(count: int) -> list[tuple[str, Samples]]:
    """Texts, and what the demo's checkpoint makes of them."""
    engine, rules = BareEngine(SHIPPED), grammar.rules()
    clips = [soundfile.read(path, dtype="float32")[0] for path in VOICES]
    made = []
    for number in range(count):
        chance = random.Random(number)
        text = f"{grammar.sentence(rules, chance)} {grammar.sentence(rules, chance)}"
        made.append((text, engine.say(text, clips[number % len(clips)], None, number)))
    return made


def recordings(folder: Path) -> list[Samples]:
    """The files of a folder, the first seconds of each."""
    found = []
    for path in sorted(folder.iterdir()):
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        found.append(resample(np.ascontiguousarray(samples[: round(MOST_SECONDS * rate), 0]), rate, RATE))
    return found


def marked(marker: PerthMarker, samples: Samples) -> Samples:
    """A sound, marked."""
    return marker.mark([marker.open()], [samples])[0]


def survival(detector: PerthDetector, marker: PerthMarker, sounds: Sequence[Samples]) -> dict[str, dict[str, float]]:
    """By change: how often the mark is found in marked sounds and in the others, and how surely."""
    found = {}
    both = [(sound, marked(marker, sound)) for sound in sounds]
    for name, change in CHANGES.items():
        others, with_mark = (
            np.array([detector.detect(*change(pair[which], RATE)).confidence for pair in both]) for which in (0, 1)
        )
        found[name] = {
            "detected": float(np.mean(with_mark >= THRESHOLD)),
            "lowest": float(with_mark.min()),
            "mean": float(with_mark.mean()),
            "false_alarms": float(np.mean(others >= THRESHOLD)),
            "highest": float(others.max()),
        }
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    return found


def heard(marker: PerthMarker, texts: Sequence[tuple[str, Samples]]) -> dict[str, Any]:
    """SNR and words wrong, without the mark and with it."""
    listener = Listener()
    errors: dict[str, Errors] = {}
    ratios = []
    for text, samples in texts:
        ways = {"plain": samples, "marked": marked(marker, samples)}
        noise = float(np.mean((ways["marked"] - samples) ** 2))
        ratios.append(10 * np.log10(float(np.mean(samples**2)) / noise))
        for way, sound in ways.items():
            for judge, listen in (("grammar", listener.grammar), ("open", listener.open)):
                key = f"{judge} {way}"
                errors[key] = errors.get(key, Errors()) + listen(sound, RATE, text)
    wrong = {key: {"wrong": each.wrong, "words": each.words} for key, each in errors.items()}
    return {"snr_db": report.summary(ratios), "words": wrong}


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


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/marks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speeches", type=int, default=100)
    parser.add_argument("--heard", type=int, default=25, help="of the speeches, by pocketsphinx, 15 s each")
    parser.add_argument("--clips", type=Path, metavar="DIR", help="recordings besides")
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    marker, detector = PerthMarker(RATE), PerthDetector()
    spoken = speeches(given.speeches)
    sounds = {"speeches": [samples for _, samples in spoken]}
    if given.clips:
        sounds["recordings"] = recordings(given.clips)
    found: dict[str, Any] = {
        "sounds": {kind: len(each) for kind, each in sounds.items()},
        "cost_ms": cost(marker),
        "heard": heard(marker, spoken[: given.heard]),
        "survival": {kind: survival(detector, marker, each) for kind, each in sounds.items()},
    }
    show(found)
    report.write(given.output, {"threshold": THRESHOLD, **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
