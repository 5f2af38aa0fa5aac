"""The official fish-speech 0.1.0: its transformers and its codec."""

from __future__ import annotations

import time
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from perf.bench.machine import give_threads
from perf.bench.official.comparison import Asked, Clock, Official, Spoken, frame_times
from tests.support.oracles.fish_speech import (
    dac_of,
    fill_official_codec,
    fill_official_transformer,
    generate,
    official_prompt,
    official_sizes,
    s2_transformer,
)
from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.prompt import Tokenizer


class Adapter(Official):
    """See `Official`."""

    source = "fish-speech 0.1.0"
    knobs = MappingProxyType({"do_sample": False})

    def __init__(self, folder: Path, asked: Asked, dtype: str) -> None:
        checkpoint = Checkpoint(folder)
        end = Tokenizer(folder, checkpoint.config).end_token
        self._model = s2_transformer(
            checkpoint.config.semantic_start_token_id, end, **official_sizes(checkpoint)
        ).eval()
        fill_official_transformer(self._model, folder)
        self._codec: Any = dac_of(checkpoint.codec)
        fill_official_codec(self._codec, checkpoint)
        self._prompt = official_prompt(checkpoint, asked.plan.request.prompt)
        self._step = self._model.forward_generate

    @torch.inference_mode()
    def encode(self, waveform: NDArray[np.float32]) -> float:
        give_threads()
        clock = Clock(self._codec.encode)
        clock(torch.from_numpy(waveform)[None])
        return clock.seconds[0]

    @torch.inference_mode()
    def speak(self, frames: int, streams: int) -> Spoken:
        give_threads()
        self._model.forward_generate = step = Clock(self._step)
        decode, began = Clock(self._codec.decode), time.perf_counter()
        codes = generate(self._model, self._prompt, frames)
        samples = decode(codes.T[None], torch.tensor([len(codes)]))[0][0, 0]
        total = time.perf_counter() - began
        times = {"first audio": total, "decode": decode.seconds[0] / len(codes), "total": total}
        return Spoken(codes.numpy(), samples.numpy(), {**times, **frame_times(began, step.ends)})
