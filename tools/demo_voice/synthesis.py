"""Speech of a speaker: flite (Black & Lenzo 2001), resampled."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from tools.demo_voice.speakers import Speaker

SAMPLE_RATE = 24000
LEAD = 0.20  # seconds of silence before the first and after the last sound
LOUDNESS = 0.07  # root mean square of the sounding part

_PHONES = "pau aa ae ah ao aw ax ay b ch d dh eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh t th uh uw v w y z zh"
PHONES = _PHONES.split()  # as flite names them; the first is silence


@dataclass(frozen=True, eq=False)
class Utterance:
    """A spoken sentence.

    Attributes:
        pcm: int16 [T], mono, 24 kHz.
        phones: int16 [n], places in PHONES.
        ends: float32 [n], where each phone ends, in seconds.
    """

    pcm: NDArray[np.int16]
    phones: NDArray[np.int16]
    ends: NDArray[np.float32]

    @property
    def samples(self) -> NDArray[np.float32]:
        """float32 [T], in -1..1."""
        return self.pcm.astype(np.float32) / 32767


def to_pcm(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    """Samples in -1..1 as whole numbers of 16 bits."""
    pcm: NDArray[np.int16] = np.round(samples.clip(-1, 1) * 32767).astype(np.int16)
    return pcm


def speak(speaker: Speaker, text: str) -> Utterance:
    """Speak `text`.

    Raises:
        RuntimeError: flite is not installed or failed.
    """
    features = {"duration_stretch": speaker.stretch * speaker.formants}
    if speaker.pitch is not None:
        features["int_f0_target_mean"] = speaker.pitch / speaker.formants
        features["int_f0_target_stddev"] = speaker.spread / speaker.formants
    settings = [part for name, value in features.items() for part in ("--setf", f"{name}={value:.4f}")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        command = ["flite", "-voice", speaker.voice, *settings, "-psdur", "-t", text, "-o", str(path)]
        try:
            found = subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise RuntimeError("flite is not installed; on Debian: apt-get install flite") from None
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"flite cannot speak {text!r} as {speaker.name}") from error
        played, rate = soundfile.read(path, dtype="float32")
    names, ends = zip(*(part.rsplit(":", 1) for part in found.stdout.split()), strict=True)
    # Played faster by the factor: formants and pitch rise by it, and the durations shrink.
    samples = soxr.resample(played, rate * speaker.formants, SAMPLE_RATE)
    times = np.array(ends, np.float32) / speaker.formants
    phones = np.array([PHONES.index(name) for name in names], np.int16)
    return _frame(samples.astype(np.float32), phones, times)


def _frame(samples: NDArray[np.float32], phones: NDArray[np.int16], times: NDArray[np.float32]) -> Utterance:
    """The utterance with silence of `LEAD` before and after, at the common loudness."""
    sounding = np.flatnonzero(phones)
    assert sounding.size, "nothing was said"
    first, last = sounding[0], sounding[-1]
    start = times[first - 1] if first else 0.0
    begin, end = round(float(start) * SAMPLE_RATE), round(float(times[last]) * SAMPLE_RATE)
    speech = samples[begin:end]
    speech = speech * (LOUDNESS / max(1e-6, float(np.sqrt(np.mean(speech**2)))))
    ramp = np.linspace(0, 1, round(0.005 * SAMPLE_RATE), dtype=np.float32)  # no click where the speech is cut
    speech[: len(ramp)] *= ramp
    speech[-len(ramp) :] *= ramp[::-1]
    silence = np.zeros(round(LEAD * SAMPLE_RATE), np.float32)
    framed = np.concatenate([silence, speech, silence])
    ends = np.concatenate([[LEAD], times[first : last + 1] - start + LEAD, [len(framed) / SAMPLE_RATE]])
    names = np.concatenate([[0], phones[first : last + 1], [0]])
    return Utterance(to_pcm(framed), names.astype(np.int16), ends.astype(np.float32))
