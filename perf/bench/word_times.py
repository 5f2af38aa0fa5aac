"""How exact the times of words are: against flite, which knows when it speaks each word.

It needs a C compiler and Debian's packages flite and flite1-dev; flite_words.c says the truth.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
from numpy.typing import NDArray
from voice_clone_words.units import units_of

from perf.bench.report import write
from voice_clone.aligner.speech import AlignedSpeech
from voice_clone.aligner.sphinx import PocketSphinx
from voice_clone.audio import resample
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.families.qwen3_tts.codec import load_decoder
from voice_clone.families.qwen3_tts.encoder import load_codec_encoder
from voice_clone.settings import DecoderSettings, Settings
from voice_clone_server.demo import SHIPPED

RATE = 24_000  # samples a second, of the codec
VOICES = ("slt", "rms", "awb", "kal16")
SENTENCES = """The birch canoe slid on the smooth planks, and nobody saw it go.
Glue the sheet to the dark blue background.
It is easy to tell the depth of a well.
These days a chicken leg is a rare dish.
Rice is often served in round bowls.
The juice of lemons makes fine punch.
The box was thrown beside the parked truck.
Four hours of steady work faced us.
A large size in stockings is hard to sell, but we tried it anyway.
The boy was there when the sun rose.
Kick the ball straight and follow through.
Help the woman get back to her feet.
A pot of tea helps to pass the evening.
The girl at the booth sold fifty bonds.
The fish twisted and turned on the bent hook.
Two blue fish swam in the tank, while the others were resting below the stones.
It snowed, rained, and hailed the same morning.
Take the winding path to reach the lake.
The wrist was badly strained and hung limp.
What joy there is in living, said the old man, if you only know how to look at it.""".splitlines()
_LIBRARIES = [*(f"flite_cmu_us_{voice}" for voice in VOICES), "flite_usenglish", "flite_cmulex", "flite", "m"]


class Spoken(NamedTuple):
    """A sentence of flite."""

    text: str
    samples: NDArray[np.float32]
    rate: int
    times: list[tuple[float, float]]
    """Begin and end of each word in seconds."""


def compiled(folder: Path) -> Path:
    """The program that speaks and tells the truth.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler or flite is missing.
    """
    program = folder / "flite_words"
    source = Path(__file__).with_name("flite_words.c")
    libraries = [f"-l{name}" for name in _LIBRARIES]
    subprocess.run(["cc", "-O1", "-o", str(program), str(source), *libraries], check=True, capture_output=True)
    return program


def spoken(program: Path, voice: str, text: str) -> Spoken:
    """A sentence in a voice of flite."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        told = subprocess.run([program, voice, text, file.name], check=True, capture_output=True, text=True).stdout
        samples, rate = soundfile.read(file.name, dtype="float32")
    times = [(float(start), float(end)) for _, start, end in map(str.split, told.splitlines())]
    return Spoken(text, samples, rate, times)


class Forgetful(PocketSphinx):
    """An engine whose dictionary lacks each tenth word."""

    def __init__(self) -> None:
        super().__init__()
        known = self._dictionary.pronunciations
        self._dictionary.pronunciations = lambda word: [] if self.lacks(word) else known(word)  # type: ignore[method-assign]

    @staticmethod
    def lacks(word: str) -> bool:
        return sum(map(ord, word)) % 10 == 0 and len(word) > 2


def measured(engine: PocketSphinx, said: Sequence[Spoken], change: Callable[[Spoken], NDArray[np.float32]]) -> Any:
    """Errors in ms of the speeches, CPU ms for a second of speech, and how many were refused."""
    starts, ends, refused, cpu, seconds = list[float](), list[float](), 0, 0.0, 0.0
    for each in said:
        samples = change(each)
        begin = time.process_time()
        speech = AlignedSpeech(engine, each.text, each.rate, "en")
        speech.feed(samples)
        words = speech.end()
        cpu += time.process_time() - begin
        seconds += len(samples) / each.rate
        refused += speech.reason is not None
        if speech.reason is None:
            starts += [w["start"] / each.rate - start for w, (start, _) in zip(words, each.times, strict=False)]
            ends += [w["end"] / each.rate - end for w, (_, end) in zip(words, each.times, strict=False)]
    row: dict[str, Any] = {"speeches": len(said), "refused": refused, "cpu_ms": round(1000 * cpu / seconds, 1)}
    for name, errors in (("start", starts), ("end", ends)):
        if not errors:
            continue
        off = np.abs(errors) * 1000
        row[name] = [round(float(np.median(off)), 1), round(float(np.percentile(off, 95)), 1)]
        row[f"{name}_above_100"] = round(float((off > 100).mean()), 4)
    return row


def noisy(level: float) -> Callable[[Spoken], NDArray[np.float32]]:
    """White noise this many dB below the speech."""
    rng = np.random.default_rng(0)

    def add(said: Spoken) -> NDArray[np.float32]:
        noise = rng.normal(0, np.sqrt(np.square(said.samples).mean()) * 10 ** (-level / 20), len(said.samples))
        return (said.samples + noise).astype(np.float32)

    return add


def through_codec() -> Callable[[Spoken], Spoken]:
    """The speech as the demo's codec encodes and decodes it."""
    settings = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(SHIPPED), "VOICE_CLONE_PRECISION": "fp32"})
    encoder, stage = load_codec_encoder(settings)[0], load_decoder(settings)

    def change(said: Spoken) -> Spoken:
        codes = encoder.encode(resample(said.samples, said.rate, RATE)).astype(np.int32)
        code2wav = Code2Wav(stage.streams(DecoderSettings.of(settings), [len(codes)]), stage.form)
        [decoded] = code2wav.decode([CodecChunk("s", 0, codes, codes[:0], True)])
        assert isinstance(decoded, Decoded), decoded
        return said._replace(samples=decoded.waveform, rate=RATE)

    return change


def joined(said: Sequence[Spoken]) -> Spoken:
    """Sentences of one voice as one speech."""
    begins = np.cumsum([0.0, *(len(each.samples) / each.rate for each in said)])
    times = [
        (begin + start, begin + end) for begin, each in zip(begins, said, strict=False) for start, end in each.times
    ]
    return Spoken(
        " ".join(each.text for each in said), np.concatenate([each.samples for each in said]), said[0].rate, times
    )


def refusals(engine: PocketSphinx, said: Spoken) -> dict[str, list[object]]:
    """What no words are in, and other texts: why the words are an estimate, and ms from the end to the answer."""
    time_of = np.arange(len(said.samples)) / said.rate
    chord = np.asarray(sum(0.1 * np.sin(2 * np.pi * pitch * time_of) for pitch in (220, 277, 330)), np.float32)
    noise = np.random.default_rng(0).normal(0, 0.1, len(said.samples)).astype(np.float32)
    found: dict[str, list[object]] = {}
    for name, text, samples, language in (
        ("silence", said.text, said.samples * 0, "en"),
        ("a chord", said.text, chord, "en"),
        ("noise alone", said.text, noise, "en"),
        ("a word too many", f"{said.text} Tomorrow.", said.samples, "en"),
        ("German", "Die alte Frau kaufte gestern neue Schuhe.", said.samples, None),
        ("emoji alone", "\U0001f642 \U0001f642", said.samples, None),
    ):
        speech = AlignedSpeech(engine, text, said.rate, language)
        speech.feed(samples)
        begin = time.perf_counter()
        words = speech.end()
        found[name] = [speech.reason, round(1000 * (time.perf_counter() - begin), 1)]
        assert all(word["estimated"] for word in words), name
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="a JSON file")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(folder))
        all_said = [spoken(program, voice, text) for voice in VOICES for text in SENTENCES]
    said = [each for each in all_said if len(each.times) == len(units_of(each.text))]
    engine = PocketSphinx()
    others = [each._replace(text=other.text) for each, other in zip(said, said[7:], strict=False)]
    longer = [each._replace(samples=np.tile(each.samples, 3)) for each in others]
    rows = {
        "as it is": measured(engine, said, lambda each: each.samples),
        "each tenth word unknown": measured(Forgetful(), said, lambda each: each.samples),
        "noise 30 dB below": measured(engine, said, noisy(30)),
        "noise 20 dB below": measured(engine, said, noisy(20)),
        "noise 10 dB below": measured(engine, said, noisy(10)),
        "another text": measured(engine, others, lambda each: each.samples),
        "another text, noise 20 dB below": measured(engine, others, noisy(20)),
        "another text, noise 10 dB below": measured(engine, others, noisy(10)),
        "another text, three times as long, noise 10 dB below": measured(engine, longer, noisy(10)),
    }
    change = through_codec()
    rows["through the demo's codec"] = measured(engine, [change(each) for each in said], lambda each: each.samples)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    long = joined(3 * said[: len(SENTENCES)])
    rows["173 s at once"] = measured(engine, [long], lambda each: each.samples)
    rows["173 s at once"]["more_mb"] = round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1)
    for name, row in rows.items():
        print(name, json.dumps(row))
    refused = refusals(engine, said[0])
    print(json.dumps(refused, indent=1))
    write(parsed.output, {"words": sum(len(each.times) for each in said), "rows": rows, "refusals": refused})


if __name__ == "__main__":
    main()
