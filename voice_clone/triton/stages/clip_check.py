"""`<family>_clip_check`: refuses what its voice encoder refuses, in front of a network that is called alone.

`tools/build_repository --native-encoders` puts it there: Triton's own backends refuse no clip.

in    waveform  FP32 [B, -1]  mono, at the rate of the network
out   waveform  FP32 [B, -1]  the same
"""

from __future__ import annotations

from collections.abc import Mapping

from voice_clone.audio import ClipLimits, check_waveform
from voice_clone.settings import ClipCheckSettings, Settings
from voice_clone.triton.model import Model
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.tensors import Value


class ClipCheckModel(Model):
    """Checks a request at a time in `execute`: it is a matter of milliseconds."""

    stage = "clip_check"

    def load(self, given: Settings) -> None:
        settings = ClipCheckSettings.of(given)
        self._rate, self._clip = settings.sample_rate, ClipLimits(max_seconds=settings.max_clip_seconds)

    def handle(self, request: Request, responder: Responder) -> Mapping[str, Value]:
        """Pass clips on. Raises: InvalidArgument, as `check_waveform`."""
        waveforms = request.array("waveform")
        assert waveforms is not None  # Request has checked it
        for waveform in waveforms:
            check_waveform(waveform, self._rate, self._clip)
        return {"waveform": waveforms}
