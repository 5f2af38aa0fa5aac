"""VoxCPM2 in this process, without server, engine and chunks: what the server's speech must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.families.bare_family import Spoken, encode, speak_in_streams
from voice_clone.families.voxcpm2.decoder_stage import load_decoder
from voice_clone.families.voxcpm2.encoder_stage import load_encoder
from voice_clone.families.voxcpm2.prompt_stage import load_prompt
from voice_clone.families.voxcpm2.talker_stage import load_talker
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest


class BareVoxCPM2:
    """The stages of a checkpoint, one after the other."""

    def __init__(self, checkpoint: Path) -> None:
        environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint), "VOICE_CLONE_DEVICE": "cpu"}
        settings = Settings({}, environ, "voxcpm2")
        self.encoder, self.prompt = load_encoder(settings), load_prompt(settings)
        self.talker, decoder = load_talker(settings), load_decoder(settings)
        self.streams = decoder.streams(DecoderSettings.of(settings), decoder.chunk_frames)

    def voice(self, clip: bytes, transcript: str | None) -> ResolvedVoice:
        """Of an audio file."""
        mode = "reference" if transcript is None else "icl"
        return ResolvedVoice(encode(self.encoder, clip, mode), transcript, mode)

    def speak(
        self, text: str, voice: ResolvedVoice | None, options: dict[str, Any] | None = None, **knobs: Any
    ) -> Spoken:
        """The frames of a speech, and their decode in one piece. Without a voice: in any."""
        speech = SpeechRequest(text, voice=None if voice is None else "anybody", options=options or {}, voiceless=True)
        prepared = self.prompt.prepare(speech, self.prompt.draft(speech), voice)
        plan = self.talker.plan(prepared.tensors, {"seed": 0, **knobs}, options or {})
        return speak_in_streams(self.talker.source, self.streams, plan)
