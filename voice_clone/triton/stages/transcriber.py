"""`transcriber`: writes down the words spoken in a clip; see docs/triton_api.md.

in    audio     STRING [1]  the bytes of a WAV, FLAC, OGG or MP3 file, with the limits of an upload
      language  STRING [1]  optional: such as English, en, en-US
out   text      STRING [1]  empty if there are no words

An operator's own model of this name and these tensors takes the place of this one, which knows only English.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from voice_clone.aligner import words
from voice_clone.audio import ClipLimits, decode, resample
from voice_clone.errors import Cancelled, Unsupported, quoted
from voice_clone.settings import ClipSettings, Settings
from voice_clone.speech import language_code
from voice_clone.triton.model import Model
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.tensors import Value

LOOK = 0.2  # seconds between two looks whether the client has left


class TranscriberModel(Model):
    """Belongs to no family. Transcribes one clip at a time, in a process of its own, for callers in turn."""

    large_at_once = 1

    def load(self, given: Settings) -> None:
        self._limits = ClipLimits(max_seconds=ClipSettings.of(given).max_clip_seconds)
        try:
            words.models()
        except ImportError:
            raise Unsupported(
                "it needs pocketsphinx with its model of English, which is not installed here; install this package "
                "with its extra alignment, or serve another model of this name"
            ) from None

    def large(self, request: Request) -> bool:
        return True

    def handle(self, request: Request, responder: Responder) -> dict[str, Value]:
        language = language_code(request.text("language"))
        if language not in (None, "en"):
            raise Unsupported(f"only English is transcribed here, not `language` {quoted(language)}")
        clip = decode(request.raw("audio") or b"", self._limits)
        samples = np.clip(resample(clip.waveform, clip.sample_rate, words.RATE), -1, 1)
        return {"text": _transcribed(np.rint(samples * 32767).astype("<i2").tobytes(), responder)}


def _transcribed(samples: bytes, responder: Responder) -> str:
    """What the program `words` writes.

    Raises:
        Cancelled: the client has left.
        RuntimeError: the program failed.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(each) for each in sys.path)}
    command = [sys.executable, "-m", words.__name__]
    with open(os.memfd_create("clip"), "w+b") as clip:  # communicate() with a timeout may lose a part of its input
        clip.write(samples)
        clip.seek(0)
        with subprocess.Popen(command, env=environment, stdin=clip, stdout=subprocess.PIPE) as process:
            while process.returncode is None:
                try:
                    text, _ = process.communicate(timeout=LOOK)
                except subprocess.TimeoutExpired:
                    if responder.cancelled():
                        process.kill()
                        raise Cancelled("the client cancelled the request") from None
    if process.returncode:
        raise RuntimeError(f"the program that transcribes ended with {process.returncode}")
    return text.decode()
