"""Fish Speech in this process, without server, engine and chunks: what the server's speech must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.families.bare_family import Spoken, encode, speak
from voice_clone.families.fish_speech.decoder_stage import load_decoder
from voice_clone.families.fish_speech.encoder_stage import load_encoder
from voice_clone.families.fish_speech.prompt import CODES
from voice_clone.families.fish_speech.prompt_stage import load_prompt
from voice_clone.families.fish_speech.talker_stage import load_talker
from voice_clone.settings import Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import StreamPlan


class BareFish:
    """The stages of a checkpoint, one after the other."""

    def __init__(self, checkpoint: Path, **settings: str) -> None:
        environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint), "VOICE_CLONE_DEVICE": "cpu", **settings}
        self.settings = Settings({}, environ, "fish_speech")
        self.encoder = load_encoder(self.settings)
        self.prompt = load_prompt(self.settings)
        self.talker = load_talker(self.settings)
        stage = load_decoder(self.settings)
        self.decoder, self.form = stage.decoder, stage.form

    def codes(self, clip: bytes) -> NDArray[np.uint16]:
        """Of an audio file."""
        return encode(self.encoder, clip, "icl")[CODES]

    def plan(self, text: str, codes: NDArray[np.uint16], transcript: str, **knobs: Any) -> StreamPlan[Any]:
        """The stream of a request."""
        speech = SpeechRequest(text, voice="anybody")
        voice = ResolvedVoice({CODES: codes}, transcript, "icl")
        prepared = self.prompt.prepare(speech, self.prompt.draft(speech), voice)
        return self.talker.plan(prepared.tensors, {"seed": 0, **knobs}, {})

    def speak(self, text: str, codes: NDArray[np.uint16], transcript: str, **knobs: Any) -> Spoken:
        """A request's codes, and their decode in one piece; arguments as of `plan`."""
        return speak(self.talker.source, self.decoder, self.plan(text, codes, transcript, **knobs))
