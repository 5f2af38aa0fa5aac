"""The official package pocket-tts 4.0.1, eager, in fp32. It speaks for one caller at a time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from perf.bench.machine import give_threads
from perf.bench.official.comparison import SEED, Asked, Clock, Official, Spoken, frame_times
from perf.bench.reference import TEXT
from tests.support.oracles.pocket_tts import official_latents, official_model, our_noise
from voice_clone.families.pocket_tts.prompt import MOST_TOKENS


class Adapter(Official):
    """See `Official`."""

    source = "pocket-tts 4.0.1"

    def __init__(self, folder: Path, asked: Asked, dtype: str) -> None:
        self._model = official_model(folder)
        self._model.eos_threshold = float("inf")
        self._state = self._model.get_state_for_audio_prompt(torch.from_numpy(asked.waveform)[None])

    def encode(self, waveform: NDArray[np.float32]) -> float:
        give_threads()
        clock = Clock(official_latents)
        clock(self._model, waveform)
        return clock.seconds[0]

    @torch.no_grad()
    def speak(self, frames: int, streams: int) -> Spoken:
        give_threads()
        model, stop, made = self._model, threading.Event(), list[torch.Tensor]()
        original = model.mimi.decode_from_latent

        def heard(latent: torch.Tensor, *rest: Any) -> Any:
            made.append((latent[0] - model.flow_lm.emb_mean) / model.flow_lm.emb_std)
            return original(latent, *rest)

        model.mimi.decode_from_latent = decode = Clock(heard)
        pieces: list[NDArray[np.float32]] = []
        ends: list[float] = []
        began = time.perf_counter()
        with our_noise(SEED, model.flow_lm.ldim, passes=1):
            for chunk in model.generate_audio_stream(self._state, TEXT, max_tokens=MOST_TOKENS, stop=stop):
                if len(ends) < frames:
                    ends.append(time.perf_counter())
                    pieces.append(chunk.numpy())
                else:
                    stop.set()
        model.mimi.decode_from_latent = original
        times = {"first audio": ends[0] - began, "decode": float(np.mean(decode.seconds)), "total": ends[-1] - began}
        frames_made = torch.cat(made)[:frames].numpy()
        return Spoken(frames_made, np.concatenate(pieces), {**times, **frame_times(began, ends)})
