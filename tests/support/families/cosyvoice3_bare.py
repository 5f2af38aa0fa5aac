"""CosyVoice3 in this process, without server, engine and chunks: what the server's speech must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tests.support.families.bare_family import Spoken, encode, speak_in_streams
from voice_clone.families.cosyvoice3.config import CROSS_LINGUAL, ZERO_SHOT
from voice_clone.families.cosyvoice3.decoder_stage import load_decoder
from voice_clone.families.cosyvoice3.encoder_stages import load_mel, load_speaker, load_tokens
from voice_clone.families.cosyvoice3.prompt_stage import load_prompt
from voice_clone.families.cosyvoice3.talker_stage import load_talker
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest


class BareCosyVoice3:
    """The stages of a checkpoint, one after the other."""

    def __init__(self, checkpoint: Path) -> None:
        environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint), "VOICE_CLONE_DEVICE": "cpu"}
        settings = Settings({}, environ, "cosyvoice3")
        self.encoders = (load_tokens(settings), load_speaker(settings), load_mel(settings))
        self.prompt, self.talker, decoder = load_prompt(settings), load_talker(settings), load_decoder(settings)
        self.streams = decoder.streams(DecoderSettings.of(settings), decoder.chunk_frames)

    def artifacts(self, clip: bytes) -> dict[str, NDArray[Any]]:
        """Of an audio file."""
        made: dict[str, NDArray[Any]] = {}
        for stage in self.encoders:
            made |= encode(stage, clip)
        return made

    def speak(
        self, text: str, clip: bytes, transcript: str | None, options: dict[str, Any] | None = None, **knobs: Any
    ) -> Spoken:
        """The tokens of a speech in the voice of a clip, and their decode in one piece."""
        speech = SpeechRequest(text, voice="anybody", options=options or {})
        voice = ResolvedVoice(self.artifacts(clip), transcript, CROSS_LINGUAL if transcript is None else ZERO_SHOT)
        prepared = self.prompt.prepare(speech, self.prompt.draft(speech), voice)
        plan = self.talker.plan(prepared.tensors, {"seed": 0, **knobs}, options or {})
        return speak_in_streams(self.talker.source, self.streams, plan)
