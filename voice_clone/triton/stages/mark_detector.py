"""`mark_detector`: says whether a sound carries the mark of synthetic speech; see docs/provenance.md.

in    audio   STRING [1]  the bytes of a WAV, FLAC, OGG or MP3 file, 0.1 s to 10 minutes
out   result  STRING [1]  JSON: mark (`perth`, or null where there is none), and what `Detection` has besides
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from voice_clone import compute
from voice_clone.audio import ClipLimits, decode
from voice_clone.marking.detection import SHORTEST, PerthDetector
from voice_clone.settings import ComputeSettings, Settings
from voice_clone.triton.model import Model
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.tensors import Value

LIMITS = ClipLimits(max_bytes=64 << 20, min_seconds=SHORTEST, max_seconds=600.0)


class MarkDetectorModel(Model):
    """Belongs to no family. Works on one file at a time; others wait."""

    threads = 1

    def load(self, given: Settings) -> None:
        """Load the network."""
        settings = ComputeSettings.of(given)
        compute.prepare(settings)
        self._detector = PerthDetector(compute.device(settings))

    def handle(self, request: Request, responder: Responder) -> Mapping[str, Value]:
        """Look for the mark in a file."""
        clip = decode(request.raw("audio") or b"", LIMITS)
        found = self._detector.detect(clip.waveform, clip.sample_rate)
        result = {
            "mark": "perth" if found.marked else None,
            "confidence": found.confidence,
            "speed": found.speed,
            "start": found.start,
            "seconds": found.seconds,
        }
        return {"result": json.dumps(result)}
