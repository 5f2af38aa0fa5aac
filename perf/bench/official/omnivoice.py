"""The official code: omnivoice 0.2.1 for the talker, and transformers 5.24.0 for the codec, in another process."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from perf.bench.machine import give_threads
from perf.bench.official.comparison import SEED, Asked, Official, Spoken
from perf.bench.reference import TEXT, TRANSCRIPT
from tests.support.oracles.omnivoice import OfficialTalker
from tests.support.oracles.omnivoice_codec import timed_codec
from voice_clone.families.omnivoice.codec_config import FOLDER
from voice_clone.families.omnivoice.config import CODEC_CODES, FRAME_RATE, REF_RMS


class Adapter(Official):
    """See `Official`. Frames come all at once, after `num_step` steps of unmasking."""

    source = "omnivoice 0.2.1 and transformers 5.24.0"

    def __init__(self, folder: Path, asked: Asked, dtype: str) -> None:
        self._talker, self._folder, self._steps = OfficialTalker(folder), folder / FOLDER, asked.options["num_step"]
        codes = torch.from_numpy(asked.artifacts[CODEC_CODES].T.astype(np.int64))
        voice = self._talker.clone_prompt(codes, TRANSCRIPT, float(asked.artifacts[REF_RMS][0]))
        seconds = asked.options["duration"]
        self._task = self._talker.task(text=TEXT, voice_clone_prompt=voice, duration=seconds)
        self._decode: float | None = None

    @staticmethod
    def options(frames: int) -> dict[str, Any]:
        return {"duration": frames / FRAME_RATE, "num_step": 32}

    def encode(self, waveform: NDArray[np.float32]) -> float:
        return self._codec([waveform], [])

    def speak(self, frames: int, streams: int) -> Spoken:
        give_threads()
        began = time.perf_counter()
        [[made]] = self._talker.spoken(self._task, [SEED], num_step=self._steps)
        spent = time.perf_counter() - began
        if self._decode is None:
            self._decode = self._codec([], [made.numpy()])
        total = spent + self._decode
        times = {"first audio": total, "frame": spent / made.shape[1], "decode": self._decode / made.shape[1]}
        return Spoken(made.numpy().T.astype(np.uint16), None, {**times, "total": total})

    def _codec(self, clips: list[NDArray[Any]], codes: list[NDArray[Any]]) -> float:
        """The second of two calls, behind which all weights are in memory."""
        with tempfile.TemporaryDirectory() as scratch:
            return timed_codec(self._folder, Path(scratch), 2 * clips, 2 * codes)[1][1]
