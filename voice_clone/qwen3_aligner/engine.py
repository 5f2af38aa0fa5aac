"""Qwen3-ForcedAligner as a `voice_clone.aligner.engine.Engine`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from voice_clone.aligner.engine import Interval, Refused, Samples, Unit
from voice_clone.audio import resample
from voice_clone.errors import InvalidArgument
from voice_clone.layers.mel import WHISPER_FFT, WHISPER_HOP, WHISPER_RATE
from voice_clone.qwen3_aligner.config import AlignerConfig, load_config
from voice_clone.qwen3_aligner.network import ForcedAligner, load_network
from voice_clone.qwen3_aligner.text import AlignerTokenizer, kept_of
from voice_clone.qwen3_aligner.times import repaired, widened
from voice_clone.qwen3_aligner.tower import rows_of
from voice_clone.settings import PrecisionSettings
from voice_clone.stages.text import MAX_TOKEN_LENGTH

LANGUAGES = ("de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "yue", "zh")
LONGEST = 180.0  # seconds, as in the official pipeline
TOKENS_PER_ROW, MORE_TOKENS = 3, 100  # of a text: 39 for a second, where fast speech has 25 with the marks
TOO_MUCH = "the text is longer than so short a speech can be"
SILENT = 1e-3  # of full scale: a speech without a louder sample is none


class Qwen3Aligner:
    """Aligns whole speeches, one after the other.

    Args:
        network: with its weights.
        tokenizer: of the same checkpoint.
    """

    def __init__(self, network: ForcedAligner, tokenizer: AlignerTokenizer) -> None:
        self.network, self.tokenizer = network, tokenizer
        self.config: AlignerConfig = network.config
        self._lock = Lock()  # native code has memory for one call

    def start(self, units: Sequence[Unit], rate: int, language: str | None) -> Qwen3Alignment:
        """See `Engine`. An unknown language is not refused."""
        if language is not None and language not in LANGUAGES:
            raise Refused(f"the aligner knows the languages {', '.join(LANGUAGES)}")
        if not any(kept_of(unit.text) for unit in units):
            raise Refused("the text has no letters or digits")
        return Qwen3Alignment(self, units, rate)

    def classes(self, waveform: Samples, units: Sequence[str]) -> Tensor:
        """The scores of all times, for start and end of each unit.

        Args:
            waveform: float32 [samples] at 16 kHz; one that is louder than full scale is scaled down.
            units: of `kept_of`, none empty.

        Returns:
            float32 [2 * units, classes].

        Raises:
            Refused: the speech is too short for the text, or silent, or a unit is a control token.
        """
        if len(waveform) < WHISPER_FFT:
            raise Refused(f"the speech has {len(waveform) / WHISPER_RATE * 1000:.0f} ms; 25 are needed")
        peak = float(np.abs(waveform).max())
        if not SILENT <= peak < float("inf"):
            raise Refused("the speech is silent" if peak < SILENT else "the speech has samples that are no numbers")
        count = rows_of(len(waveform) // WHISPER_HOP)
        most = TOKENS_PER_ROW * count + MORE_TOKENS
        try:
            if 2 * len(units) + sum(map(len, units)) / MAX_TOKEN_LENGTH > most:  # before it is tokenised
                raise InvalidArgument(TOO_MUCH)
            ids, places = self.tokenizer.prompt(units, count)
            if len(ids) - count > most:
                raise InvalidArgument(TOO_MUCH)
        except InvalidArgument as error:
            raise Refused(str(error)) from None
        with self._lock:
            rows = self.network.rows(waveform / np.float32(max(peak, 1.0)))
            return self.network.logits(rows, ids, places)


class Qwen3Alignment:
    """A `voice_clone.aligner.engine.Alignment` of one speech."""

    def __init__(self, engine: Qwen3Aligner, units: Sequence[Unit], rate: int) -> None:
        self._engine, self._rate = engine, rate
        self._units = [kept_of(unit.text) for unit in units]
        self._samples: list[Samples] = []
        self._length = 0

    def feed(self, samples: Samples) -> list[Interval]:
        """Keep the samples: all words are settled at the end."""
        self._length += len(samples)
        if self._length > LONGEST * self._rate:
            self._samples.clear()
            raise Refused(f"the speech has more than {LONGEST:.0f} s")
        self._samples.append(samples)
        return []

    def end(self) -> list[Interval]:
        """See `Alignment`. A unit without letters or digits has no length, at the end of the one before it."""
        samples = np.concatenate([np.zeros(0, np.float32), *self._samples])
        self._samples.clear()
        step, spoken = self._engine.config.timestamp_segment_time, [each for each in self._units if each]
        logits = self._engine.classes(resample(samples, self._rate, WHISPER_RATE), spoken)
        times = repaired((logits.argmax(dim=1) * step).tolist())
        spans = iter(widened(times, 1000 * self._length / self._rate, step))
        sure = iter(confidences(logits, times, step))
        found: list[Interval] = []
        for unit in self._units:
            last = found[-1].end if found else 0
            if unit:
                start, end = (min(round(each * self._rate / 1000), self._length) for each in next(spans))
                found.append(Interval(start, end, next(sure)))
            else:
                found.append(Interval(last, last))
        return found


def confidences(logits: Tensor, times: Sequence[int], step: float) -> list[float]:
    """How likely the network finds start and end of each unit: the geometric mean of their classes' probabilities."""
    chosen = (torch.tensor(times, device=logits.device) / step).round().long()
    each = logits.log_softmax(dim=1).gather(1, chosen[:, None])[:, 0]
    return [float(pair) for pair in each.view(-1, 2).mean(dim=1).exp()]


def load(checkpoint_dir: Path, settings: PrecisionSettings) -> Qwen3Aligner:
    """The engine of a checkpoint in the official format.

    Raises:
        CheckpointError: it cannot be served.
    """
    config = load_config(checkpoint_dir)
    tokenizer = AlignerTokenizer(checkpoint_dir, config)
    return Qwen3Aligner(load_network(settings, checkpoint_dir, config), tokenizer)
