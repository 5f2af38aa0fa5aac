"""`<family>_..._encoder`: a clip to artifacts of its voice.

in    waveform     FP32 [-1]   mono; empty: names, types and dimensions of the artifacts alone
      sample_rate  INT32 [1]   Hz
      mode         STRING [1]  optional
out   <artifact>   the family's
      fingerprint  STRING [1]  of weights and configuration; of several networks, one each, whose name ends so
      limits       STRING [1]  where config.pbtxt has it: JSON {artifact: {"below", "rows"}}, see `stages.Limit`
      presets      STRING [1]  where config.pbtxt has it: JSON [name] of the voices that the checkpoint brings
      modes        STRING [1]  where config.pbtxt has it: JSON {mode: [what it needs] or why not}, best mode first
"""

from __future__ import annotations

import json
import logging
import os
import time
from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from voice_clone import compute
from voice_clone.audio import ClipLimits, check_waveform, resample
from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.model_start import trim
from voice_clone.settings import EncoderSettings, Settings
from voice_clone.stages.protocols import Call, EncoderStage
from voice_clone.triton.calls import call
from voice_clone.triton.model import Model
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.tensors import Value

log = logging.getLogger("voice_clone.encoder")

# oneDNN compiles for the length of each clip and would keep it: without this bound the process of a codec encoder grows
# by 170 MB over 1000 clips.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")


class EncoderModel(Model):
    """The base of an encoder's model. A family sets `stage` and `load_stage`, which gets `call`.

    Attributes:
        in_torch: whether torch computes the network, on a GPU where there is one; it then takes memory there.
        least_rate: of a clip, Hz, if the family does without those that were recorded at less; the others take them.
    """

    in_torch = True
    least_rate = 0
    rests_with = "checkpoint_dir"

    @staticmethod
    @abstractmethod
    def load_stage(given: Settings, call: Call, /) -> EncoderStage:
        """The family's stage, as the settings ask for it."""

    def load(self, given: Settings) -> None:
        settings = EncoderSettings.of(given)
        compute.prepare(settings, remote=bool(settings.network_fingerprint) or not self.in_torch)
        self._clip = ClipLimits(max_seconds=settings.max_clip_seconds)
        self.threads = compute.encoder_threads(settings)

    def load_heavy(self, given: Settings) -> None:
        settings = EncoderSettings.of(given)
        self._stage = self.load_stage(given, call)
        if compute.device(settings) == "cuda" and not self.threads:  # threads: the network is another model's
            self._warm_up()

    def _warm_up(self) -> None:
        """Encode a second of noise, so that the first clip does not wait for CUDA's libraries to set themselves up.

        They do so for each thread. Triton calls `load` and `execute`, which encodes, on the same one.
        """
        began = time.monotonic()
        noise = 0.1 * np.random.default_rng(0).standard_normal(self._stage.sample_rate)
        self._stage.encode(noise.astype(np.float32), None)
        log.info("warmed up in %.1f s", time.monotonic() - began)

    def handle(self, request: Request, responder: Responder) -> Mapping[str, Value]:
        waveform, rate = request.array("waveform"), request.number("sample_rate")
        assert waveform is not None  # Request has checked it
        if waveform.size:
            check_waveform(waveform, rate, self._clip)
            if rate < self.least_rate:
                raise Unsupported(
                    f"the clip was recorded at {rate} Hz; this model needs at least {self.least_rate} Hz of a voice"
                )
            waveform = resample(waveform, rate, self._stage.sample_rate)
        mode = request.text("mode")
        if mode and mode not in (self._stage.modes or ()):
            known = ", ".join(self._stage.modes or ()) or "left out"
            raise InvalidArgument(f"mode is {mode[:40]!r}; it must be {known}")
        outputs: dict[str, Value] = {**self._stage.encode(waveform, mode)}
        if waveform.size:
            trim()
        if self.gives("limits"):
            outputs["limits"] = json.dumps({name: each._asdict() for name, each in self._stage.limits(mode).items()})
        if self.gives("presets"):
            outputs["presets"] = json.dumps(list(self._stage.presets))
        if self._stage.modes is not None:
            described = {mode: v if isinstance(v, str) else list(v) for mode, v in self._stage.modes.items()}
            outputs["modes"] = json.dumps(described)
        return {**outputs, **self._stage.fingerprints}
