"""`mark_detector`: says whether a sound carries the mark of synthetic speech; see docs/provenance.md.

in    audio   STRING [1]  the bytes of a WAV, FLAC, OGG or MP3 file, 0.1 s to 10 minutes
out   result  STRING [1]  JSON, as `Detection` has it; mark is null where there is none
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from itertools import chain

from voice_clone import compute
from voice_clone.audio import ClipLimits, decode
from voice_clone.errors import DeadlineExceeded
from voice_clone.marking.detectors import SHORTEST, installed_detectors, likeliest
from voice_clone.settings import ComputeSettings, Settings
from voice_clone.triton.model import Model, Steps
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder

LIMITS = ClipLimits(max_bytes=64 << 20, min_seconds=SHORTEST, max_seconds=600.0)
SECONDS, PER_SECOND = 60.0, 0.5  # in which a file is answered: these, and for each second of its sound


class MarkDetectorModel(Model):
    """Belongs to no family. Works on a piece of one file at a time; between pieces callers take turns."""

    large_at_once = 1

    def load(self, given: Settings) -> None:
        settings = ComputeSettings.of(given)
        compute.prepare(settings)
        self._detectors = installed_detectors(compute.device(settings))

    def large(self, request: Request) -> bool:
        return True

    def handle(self, request: Request, responder: Responder) -> Steps:
        clip = decode(request.raw("audio") or b"", LIMITS)
        seconds = SECONDS + PER_SECOND * clip.seconds
        pieces = [detector.pieces(clip.waveform, clip.sample_rate) for detector in self._detectors]
        del clip  # the detector that works on it decides how long the sound is in memory
        yield
        found = []
        for piece in chain.from_iterable(pieces):
            found.append(piece)
            if time.monotonic() - request.came > seconds:
                raise DeadlineExceeded(
                    f"in {seconds:.0f} s the sound was not looked through to its end; try again later"
                )
            yield
        return {"result": json.dumps(asdict(likeliest(found)))}
