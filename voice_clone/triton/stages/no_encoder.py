"""`<family>_voice_encoder` of a family that makes no voice of a clip: it says why, and which voices it has instead.

in    waveform, sample_rate, mode  as any voice encoder's; nothing of them is read
out   fingerprint  STRING [1]  constant
      modes        STRING [1]  JSON {mode: why it cannot be had}
      presets      STRING [1]  JSON [name] of the voices that the checkpoint brings

Its process imports no torch.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping

from voice_clone.settings import Settings
from voice_clone.stages.protocols import NoEncoder
from voice_clone.triton.model import Model
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.tensors import Value


class NoEncoderModel(Model):
    """The base of such a model. A family sets `load_stage`."""

    stage = "voice_encoder"

    @staticmethod
    @abstractmethod
    def load_stage(given: Settings, /) -> NoEncoder:
        """What the family says, as the settings ask for it."""

    def load(self, settings: Settings) -> None:
        self._said = self.load_stage(settings)

    def handle(self, request: Request, responder: Responder) -> Mapping[str, Value]:
        modes, presets = dict(self._said.modes), list(self._said.presets)
        return {"fingerprint": "none", "modes": json.dumps(modes), "presets": json.dumps(presets)}
