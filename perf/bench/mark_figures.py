"""What `perf/marks` finds of single sounds. Each has a file of its own, so a run that was stopped goes on where it was.

speech-N.wav     what the demo's checkpoint says
speech-N.json    confidence of the detector in it, by change: as it is, and marked
recording-N.json the same of a recording
heard-N.json     SNR and words wrong of the speech, without the mark and with it
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray

from perf.bench import report
from perf.bench.sound_changes import CHANGES
from tools.demo_voice import grammar
from tools.demo_voice.listening import Errors, Listener
from tools.demo_voice.qwen3_tts.bare_engine import BareEngine
from voice_clone.audio import resample
from voice_clone.marking.detection import PerthDetector
from voice_clone.marking.marker import PerthMarker
from voice_clone_server.demo import CLIP, SHIPPED

RATE = 24_000  # Hz
VOICES = (CLIP, CLIP.with_name("rms.wav"))
MOST_SECONDS = 10.0  # of a recording

Samples = NDArray[np.float32]
Call = tuple[Path, str, int, Path | None]
"""Folder of the figures, their kind, number of the sound, file of a recording: of `find`."""


def find(folder: Path, kind: str, number: int, path: Path | None = None) -> None:
    """Write the figures of one sound, in a process of its own or not.

    Args:
        folder: of all figures.
        kind: `speech`, `recording` or `heard`.
        number: of the sound.
        path: of a recording.
    """
    torch.set_num_threads(1)
    if kind == "recording":
        assert path is not None
        found: dict[str, Any] = {"confidences": confidences(recording(path)), "file": path.name}
    elif kind == "speech":
        found = {"confidences": confidences(speech(folder, number))}
    else:
        found = heard(text_of(number), speech(folder, number))
    text = json.dumps({**found, "commit": report.commit()})
    _write(file_of(folder, kind, number), lambda target: target.write_text(text, encoding="utf-8"))


def file_of(folder: Path, kind: str, number: int) -> Path:
    """Where the figures of a sound are."""
    return folder / f"{kind}-{number}.json"


def text_of(number: int) -> str:
    """What a speech says: two sentences."""
    rules, chance = grammar.rules(), random.Random(number)
    return f"{grammar.sentence(rules, chance)} {grammar.sentence(rules, chance)}"


def speech(folder: Path, number: int) -> Samples:
    """What the demo's checkpoint makes of a text, in one of the voices; it is kept in the folder."""
    path = folder / f"speech-{number}.wav"
    if not path.exists():
        clip: Samples = soundfile.read(VOICES[number % len(VOICES)], dtype="float32")[0]
        made = _engine().say(text_of(number), clip, None, number)
        _write(path, lambda target: soundfile.write(target, made, RATE, format="WAV", subtype="FLOAT"))
    samples: Samples = soundfile.read(path, dtype="float32")[0]
    return samples


def recording(path: Path) -> Samples:
    """The first seconds of a file."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return resample(np.ascontiguousarray(samples[: round(MOST_SECONDS * rate), 0]), rate, RATE)


def marked(samples: Samples) -> Samples:
    """A sound, marked."""
    marker = _marker()
    return marker.mark([marker.open()], [samples])[0]


def confidences(sound: Samples) -> dict[str, list[float]]:
    """By change: the detector's confidence in the sound as it is, and marked."""
    both = (sound, marked(sound))
    return {
        name: [_detector().detect(*change(each, RATE)).confidence for each in both] for name, change in CHANGES.items()
    }


def heard(text: str, samples: Samples) -> dict[str, Any]:
    """SNR, decibels, and words wrong by judge and way, each with the number of words."""
    ways = {"plain": samples, "marked": marked(samples)}
    noise = float(np.mean((ways["marked"] - samples) ** 2))
    errors: dict[str, Errors] = {}
    for way, sound in ways.items():
        for judge, listen in (("grammar", _listener().grammar), ("open", _listener().open)):
            errors[f"{judge} {way}"] = listen(sound, RATE, text)
    return {
        "snr_db": 10 * float(np.log10(float(np.mean(samples**2)) / noise)),
        "words": {key: [each.wrong, each.words] for key, each in errors.items()},
    }


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    """A file that is whole or not there."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    write(part)
    part.rename(path)


@cache
def _engine() -> BareEngine:
    return BareEngine(SHIPPED)


@cache
def _marker() -> PerthMarker:
    return PerthMarker(RATE)


@cache
def _detector() -> PerthDetector:
    return PerthDetector()


@cache
def _listener() -> Listener:
    return Listener()
