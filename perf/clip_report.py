"""How well the report on a clip measures: synthetic speech with known noise, clipping and silence.

    perf/clip_report

Speaks with flite and espeak-ng where they are installed (apt-get install flite espeak-ng), and prints a table: for each
defect the true figure, the measured ones, and the share of clips that have the warning.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from voice_clone.audio import Clip
from voice_clone.speakers.report import ClipReport, measure, warnings_of
from voice_clone.speakers.report.activity import activity
from voice_clone.speakers.report.spectrum import spectrum

Samples = npt.NDArray[np.float32]
Change = Callable[[Samples, int], Samples]
FLITE = ("kal16", "awb", "rms", "slt")
TEXTS = {
    "en": "The old harbour was quiet in the morning. A few boats came back before noon, and the fishermen talked.",
    "de": "Der alte Hafen war am Morgen still. Einige Boote kamen vor Mittag zurück, und die Fischer sprachen.",
    "es": "El viejo puerto estaba tranquilo por la mañana. Algunos barcos regresaron antes del mediodía.",
    "fr": "Le vieux port était calme le matin. Quelques bateaux sont revenus avant midi, et on parlait du temps.",
    "ru": "Старая гавань была тихой утром. Несколько лодок вернулись до полудня, и рыбаки говорили о погоде.",
    "cmn": "早上的老港口很安静。几艘船在中午之前回来了，渔民们谈论着天气。",
    "ja": "あさのみなとはしずかでした。しょうごまえになんそうかのふねがもどってきました。",
    "ko": "아침의 오래된 항구는 조용했다. 정오 전에 배 몇 척이 돌아왔다.",
}
BREATHLESS = (
    "She sells sea shells and this is a sentence without any pause at all that goes on until she is out of breath"
)
RATES = (120, 175, 240)  # words a minute of espeak-ng


def voices(folder: Path) -> Iterator[tuple[Samples, int, str]]:
    """Samples, sample rate and transcript of each clip of clean speech."""
    commands: list[tuple[list[str], str]] = []
    for text in (TEXTS["en"], BREATHLESS):
        commands += [(["flite", "-voice", voice, "-t", text, "-o"], text) for voice in FLITE]
    for language, text in TEXTS.items():
        commands += [(["espeak-ng", "-v", language, "-s", str(rate), text, "-w"], text) for rate in RATES]
    commands.append((["espeak-ng", "-v", "en", "-s", "240", BREATHLESS, "-w"], BREATHLESS))
    for index, (command, text) in enumerate(commands):
        if shutil.which(command[0]):
            path = folder / f"{index}.wav"
            subprocess.run([*command, str(path)], check=True)
            samples, rate = soundfile.read(path, dtype="float32")
            yield samples, int(rate), text


def noise(kind: str, length: int) -> npt.NDArray[np.float64]:
    """Noise [length] of equal power in each hertz (white) or in each octave (pink)."""
    samples = np.random.default_rng(length).standard_normal(length)
    if kind == "white":
        return samples
    spectrum = np.fft.rfft(samples)
    return np.fft.irfft(spectrum / np.sqrt(np.maximum(np.arange(len(spectrum)), 1)), length)


def noisy(kind: str, snr: float) -> Change:
    """Adds noise: the power of the speech's frames is `snr` dB above it, both in the bands of the report."""

    def change(samples: Samples, rate: int) -> Samples:
        added = noise(kind, len(samples)).astype(np.float32)
        frames = spectrum(samples, rate)
        speech = frames.bands.sum(axis=1)[activity(frames).active].mean()
        gain = np.sqrt(speech / spectrum(added, rate).bands.sum(axis=1).mean() / 10 ** (snr / 10))
        mixed: Samples = (samples + gain * added).astype(np.float32)
        return mixed

    return change


def clipped(share: float) -> Change:
    """Cuts the highest samples off, and makes the result softer."""

    def change(samples: Samples, rate: int) -> Samples:
        limit = np.quantile(np.abs(samples), 1 - share)
        softer: Samples = (0.7 * np.clip(samples, -limit, limit)).astype(np.float32)
        return softer

    return change


def silent(before: float, after: float, snr: float) -> Change:
    """Puts seconds of silence around the speech, and white noise under all."""

    def change(samples: Samples, rate: int) -> Samples:
        padded = np.concatenate([np.zeros(round(before * rate)), samples, np.zeros(round(after * rate))])
        return noisy("white", snr)(padded.astype(np.float32), rate)

    return change


def main() -> int:
    """Print the table."""
    argparse.ArgumentParser(prog="perf/clip_report", description=(__doc__ or "").partition("\n")[0]).parse_args()
    defects: list[tuple[str, str, Change, Callable[[ClipReport], float | None]]] = [
        ("none", "", lambda samples, rate: samples, lambda report: report.snr_db)
    ]
    for kind in ("white", "pink"):
        for snr in (5, 10, 15, 20, 30, 40):
            defects.append((f"{kind} noise, {snr} dB", "noise", noisy(kind, snr), lambda report: report.snr_db))
    for share in (0.0005, 0.002, 0.01, 0.05):
        measured: Callable[[ClipReport], float | None] = lambda report: 100 * report.clipped_share  # noqa: E731
        defects.append((f"{100 * share:g} % of samples clipped", "clipping", clipped(share), measured))
    for snr in (40, 20, 10):
        told = f"2 s of silence before, noise at {snr} dB"
        defects.append((told, "leading_silence", silent(2, 3, snr), lambda report: report.leading_silence))
    with tempfile.TemporaryDirectory() as folder:
        clips = list(voices(Path(folder)))
    if not clips:
        print("neither flite nor espeak-ng is installed", file=sys.stderr)
        return 1
    print(
        f"{len(clips)} clips\n\n| defect | measured: mean (least to most) | clips with its warning | other warnings |"
    )
    print("|---|---|---|---|")
    for name, code, change, figure in defects:
        values, found, others = [], 0, set()
        for samples, rate, text in clips:
            clip = Clip(change(samples, rate), rate, "audio/wav", b"")
            report = measure(clip)
            values.append(figure(report) or 0.0)
            codes = {warning.code for warning in warnings_of(report, clip.seconds, rate, text)}
            found += code in codes
            others |= codes - {code}
        figures = f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"
        print(f"| {name} | {figures} | {found} of {len(clips)} | {', '.join(sorted(others)) or 'none'} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
