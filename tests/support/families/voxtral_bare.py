"""Voxtral TTS in this process, without server, engine and chunks: what the server's speech must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.families.bare_family import Spoken, encode, speak
from voice_clone.families.voxtral.decoder_stage import load_decoder
from voice_clone.families.voxtral.encoder_stage import load_encoder
from voice_clone.families.voxtral.prompt import CODES
from voice_clone.families.voxtral.prompt_stage import load_prompt
from voice_clone.families.voxtral.talker_stage import load_talker
from voice_clone.settings import Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest


class BareVoxtral:
    """The stages of a checkpoint, one after the other."""

    def __init__(self, checkpoint: Path) -> None:
        environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint), "VOICE_CLONE_DEVICE": "cpu"}
        settings = Settings({}, environ, "voxtral")
        self.encoder, self.prompt = load_encoder(settings), load_prompt(settings)
        self.talker, self.decoder = load_talker(settings), load_decoder(settings).decoder

    def codes(self, clip: bytes) -> NDArray[np.uint16]:
        """Of an audio file."""
        return encode(self.encoder, clip, "icl")[CODES]

    def speak(self, text: str, voice: str | NDArray[np.uint16], **knobs: Any) -> Spoken:
        """The codes of a speech in a preset, or in the voice of a clip's codes, and their decode in one piece."""
        speech = SpeechRequest(text, voice=voice if isinstance(voice, str) else "anybody")
        resolved = None if isinstance(voice, str) else ResolvedVoice({CODES: voice}, None, "icl")
        prepared = self.prompt.prepare(speech, self.prompt.draft(speech), resolved)
        return speak(self.talker.source, self.decoder, self.talker.plan(prepared.tensors, {"seed": 0, **knobs}, {}))
