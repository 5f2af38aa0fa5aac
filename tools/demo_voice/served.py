"""A server that clones voices, as the judges want it."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from voice_clone_client import Client
from voice_clone_client.wav import WavWriter

from tools.demo_voice.synthesis import SAMPLE_RATE


class ServedVoice:
    """A `tools.demo_voice.evaluation.Voice`.

    Args:
        client: of the server; without another word it asks for its default family.

    Attributes:
        sample_rate: Hz of what was said last.
        borders: where the chunks of it met, in samples.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.sample_rate = SAMPLE_RATE
        self.borders: list[int] = []

    def say(self, text: str, clip: NDArray[np.float32], transcript: str | None, seed: int) -> NDArray[np.float32]:
        """Speak `text` in the voice of `clip` (24 kHz); in context with its transcript, else by its embedding."""
        file = io.BytesIO()
        with WavWriter(file, SAMPLE_RATE) as wav:
            wav.write(clip)
        speech = self._client.speak(text, reference_audio=file.getvalue(), reference_text=transcript, seed=seed)
        chunks = []
        for chunk in speech:
            chunks.append(chunk.samples)
            self.sample_rate = chunk.sample_rate
        self.borders = np.cumsum([len(samples) for samples in chunks])[:-1].tolist()
        return np.concatenate(chunks) if chunks else np.zeros(0, np.float32)
