"""Other implementations of Qwen3-TTS, which speak the same text in the same voice."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from perf.bench.machine import give_threads
from perf.bench.reference import CLIP, TEXT, TRANSCRIPT
from perf.bench.spent import Spent, clock
from tests.support.oracles.packages import quiet
from tests.support.oracles.qwen_tts import qwen_tts
from voice_clone.audio import decode

FRAME_SECONDS = 0.08

Codes = npt.NDArray[np.int32]


class Official:
    """The official model.

    Args:
        embedding: the voice is this alone, and the whole text is in the prompt; None: the shipped clip in context.

    Attributes:
        positions: of the last prompt.
    """

    def __init__(
        self,
        folder: Path,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        embedding: npt.NDArray[np.float32] | None = None,
    ) -> None:
        give_threads()
        with quiet():
            self.model = qwen_tts().Qwen3TTSModel.from_pretrained(str(folder), dtype=dtype, device_map=device)
            if embedding is None:
                clip = decode(CLIP.read_bytes())
                self.items = self.model.create_voice_clone_prompt((clip.waveform, clip.sample_rate), TRANSCRIPT)
            else:
                voice = torch.from_numpy(embedding).to(device, dtype)
                self.items = [qwen_tts().VoiceClonePromptItem(None, voice, x_vector_only_mode=True, icl_mode=False)]
        self._text_first = embedding is not None
        self.positions = 0

    def speak(self, frames: int, streams: int = 1) -> tuple[Codes, Spent]:
        """The codes of the first speech. `streams` are one call with lists, as the package takes them."""
        seen: list[Codes] = []
        spent = {"code2wav": 0.0}
        steps: list[float] = []  # times of the talker's calls: for the prompt, then one for each frame
        inner, tokenizer = self.model.model, self.model.model.speech_tokenizer
        forward, real = inner.talker.forward, tokenizer.decode

        @functools.wraps(forward)
        def timed_forward(*args: Any, **kwargs: Any) -> Any:
            if not steps:
                self.positions = kwargs["inputs_embeds"].shape[1]
            steps.append(time.perf_counter())
            return forward(*args, **kwargs)

        def timed_decode(encoded: Any) -> Any:
            seen.append(encoded[0]["audio_codes"].cpu().numpy())
            with clock(spent, "code2wav"):
                return real(encoded)

        give_threads()
        inner.talker.forward, tokenizer.decode = timed_forward, timed_decode
        began = time.perf_counter()
        try:
            with quiet():
                self.model.generate_voice_clone(
                    [TEXT] * streams,
                    ["English"] * streams,
                    voice_clone_prompt=self.items * streams,
                    do_sample=False,
                    subtalker_dosample=False,
                    non_streaming_mode=self._text_first,
                    max_new_tokens=frames + 1,  # the official package gives one frame less
                )
        finally:
            del inner.talker.forward, tokenizer.decode
        total = time.perf_counter() - began
        frame = (steps[frames] - steps[1]) / (frames - 1)
        result = Spent(total, steps[1] - steps[0], frame, spent["code2wav"], total, len(seen[0]))
        reference = self.items[0].ref_code
        return seen[0][0 if reference is None else len(reference) :].astype(np.int32), result


class Faster:
    """faster-qwen3-tts, as its README uses it: CUDA graphs, one stream, chunks of 8 frames."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from faster_qwen3_tts import FasterQwen3TTS  # type: ignore[import-not-found]

        self.model = FasterQwen3TTS.from_pretrained(str(folder), device="cuda", dtype=dtype)

    def speak(self, frames: int) -> Spent:
        began, first, seconds = time.perf_counter(), 0.0, 0.0
        for chunk, rate, _ in self.model.generate_voice_clone_streaming(
            text=TEXT,
            language="English",
            ref_audio=str(CLIP),
            ref_text=TRANSCRIPT,
            chunk_size=8,
            max_new_tokens=frames,
            do_sample=False,
        ):
            seconds += len(chunk) / rate
            first = first or time.perf_counter() - began
        total = time.perf_counter() - began
        total *= frames * FRAME_SECONDS / seconds  # it may make a frame less
        return Spent(first, 0.0, total / frames, 0.0, total, frames)  # it times no parts: all counts as frames
