"""The networks of vllm-omni 0.30.0, eager, with transformers' Mistral as the backbone."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from perf.bench.machine import give_threads
from perf.bench.official.comparison import SEED, Asked, Clock, Official, Spoken, frame_times
from tests.support.oracles.voxtral import OfficialTalker, noise, official_codes
from voice_clone.families.voxtral.checkpoint import Checkpoint
from voice_clone.families.voxtral.config import SPECIAL_IDS
from voice_clone.families.voxtral.flow_head import SamplingParameters


class Adapter(Official):
    """See `Official`."""

    source = "networks of vllm-omni 0.30.0"

    def __init__(self, folder: Path, asked: Asked, dtype: str) -> None:
        checkpoint = Checkpoint(folder)
        self._official = OfficialTalker(checkpoint)
        self._prompt = self._official.embed_prompt(checkpoint, asked.plan.request.prompt)
        self._books = checkpoint.config.audio.n_acoustic_codebook
        self._head = self._official.head

    def encode(self, waveform: NDArray[np.float32]) -> float:
        give_threads()
        clock = Clock(official_codes)
        clock(self._official.codec, torch.from_numpy(waveform))
        return clock.seconds[0]

    @torch.inference_mode()
    def speak(self, frames: int, streams: int) -> Spoken:
        give_threads()
        self._official.head = head = Clock(self._head)
        decode, began = Clock(self._official.codec.decode), time.perf_counter()
        [ids] = self._official.frames(
            [self._prompt], [noise(SEED, frames, self._books)], [SamplingParameters(seed=SEED).guidance]
        )
        codes = ids - SPECIAL_IDS
        samples = decode(codes.T[None])[0, 0]
        total = time.perf_counter() - began
        times = {"first audio": total, "decode": decode.seconds[0] / len(codes), "total": total}
        return Spoken(codes.numpy(), samples.numpy(), {**times, **frame_times(began, head.ends)})
