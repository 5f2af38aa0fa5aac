"""The official package voxcpm 2.0.3, eager, in fp32 and in bf16, its own default."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from perf.bench.machine import give_threads
from perf.bench.official.comparison import SEED, Asked, Clock, Official, Spoken, frame_times
from perf.bench.reference import TEXT
from tests.support.oracles.voxcpm import official_frames, official_model
from tests.support.oracles.voxcpm_audio import official_audio_vae, official_waveform
from voice_clone.families.voxcpm2.audio_vae_checkpoint import AudioVAECheckpoint


class Adapter(Official):
    """See `Official`. The clip would change what the decoder hears first, so there is none."""

    source = "voxcpm 2.0.3"
    dtypes = ("float32", "bfloat16")
    voiceless = True

    def __init__(self, folder: Path, asked: Asked, dtype: str) -> None:
        self._model = official_model(folder, dtype)
        self._decoder = official_audio_vae(AudioVAECheckpoint(folder))
        self._asked = asked

    def speak(self, frames: int, streams: int) -> Spoken:
        give_threads()
        sampler, decode = Clock(self._model.feat_decoder.forward), Clock(official_waveform)
        began = time.perf_counter()
        with mock.patch.object(self._model.feat_decoder, "forward", sampler):
            made = official_frames(
                self._model, TEXT, self._asked.plan.request.prompt, "", SEED, frames, **self._asked.options
            )
        samples: NDArray[np.float32] = decode(self._decoder, made).flatten().numpy()
        total = time.perf_counter() - began
        times = {"first audio": total, "decode": decode.seconds[0] / len(made), "total": total}
        return Spoken(made.numpy(), samples, {**times, **frame_times(began, sampler.ends)})
