"""Speech of a server, with the places where its chunks met."""

from __future__ import annotations

import io

import numpy as np
import soundfile
from numpy.typing import NDArray
from voice_clone_client import Client, Speech

from tools.demo_voice.synthesis import SAMPLE_RATE


def as_file(clip: NDArray[np.float32]) -> bytes:
    """A clip (24 kHz) as a WAV file of the same numbers: what the server hears is what another engine hears."""
    file = io.BytesIO()
    soundfile.write(file, clip, SAMPLE_RATE, format="WAV", subtype="FLOAT")
    return file.getvalue()


class ServedVoice:
    """A server that clones voices.

    Args:
        client: of the server; without another word it asks for its default family.

    Attributes:
        sample_rate: Hz of what was said last.
        borders: where the chunks of it met, in samples.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sample_rate = SAMPLE_RATE
        self.borders: list[int] = []

    def say(self, text: str, clip: NDArray[np.float32], transcript: str | None, seed: int) -> NDArray[np.float32]:
        """Speak `text` in the voice of `clip` (24 kHz); in context with its transcript, else by its embedding."""
        return self.read(self.client.speak(text, reference_audio=as_file(clip), reference_text=transcript, seed=seed))

    def read(self, speech: Speech) -> NDArray[np.float32]:
        """The samples of a speech; notes their rate and borders."""
        chunks = []
        for chunk in speech:
            self.sample_rate = chunk.sample_rate
            if len(chunk.samples):  # the last one is empty where the speech ends with the chunk before it
                chunks.append(chunk.samples)
        self.borders = np.cumsum([len(samples) for samples in chunks])[:-1].tolist()
        return np.concatenate(chunks) if chunks else np.zeros(0, np.float32)
