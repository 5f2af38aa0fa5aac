"""Chirp in this process, without server, engine and chunks: what the server's speech must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.families.bare_family import Spoken, decode_whole, encode, speak
from tools.example_family.decoder_stage import load_decoder
from tools.example_family.encoder_stage import load_encoder
from tools.example_family.prompt import TIMBRE
from tools.example_family.prompt_stage import load_prompt
from tools.example_family.talker_stage import load_talker
from voice_clone.settings import Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import StreamPlan


class BareChirp:
    """The stages of a checkpoint, one after the other."""

    def __init__(self, checkpoint: Path) -> None:
        settings = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint), "VOICE_CLONE_DEVICE": "cpu"}, "chirp")
        self.encoder = load_encoder(settings)
        self.prompt = load_prompt(settings)
        self.talker = load_talker(settings)
        stage = load_decoder(settings)
        self.decoder, self.form = stage.decoder, stage.form

    def timbre(self, clip: bytes) -> NDArray[np.float16]:
        """Of an audio file."""
        return encode(self.encoder, clip, "clone")[TIMBRE]

    def plan(
        self,
        text: str,
        timbre: NDArray[np.float16],
        transcript: str,
        *,
        options: dict[str, Any] | None = None,
        **knobs: Any,
    ) -> StreamPlan[Any]:
        """The stream of a request."""
        speech = SpeechRequest(text, voice="anybody", options=options or {})
        voice = ResolvedVoice({TIMBRE: timbre}, transcript, "clone")
        prepared = self.prompt.prepare(speech, self.prompt.draft(speech), voice)
        return self.talker.plan(prepared.tensors, knobs, speech.options)

    def speak(self, *request: Any, **more: Any) -> Spoken:
        """A request's codes, and their decode in one piece; arguments as of `plan`."""
        return speak(self.talker.source, self.decoder, self.plan(*request, **more))

    def decode(self, codes: NDArray[np.int32], plan: StreamPlan[Any]) -> NDArray[np.float32]:
        """Codes [frames, 3] in the voice of `plan`, in one piece."""
        return decode_whole(self.decoder, codes, plan)
