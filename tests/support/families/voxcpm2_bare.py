"""VoxCPM2 in this process, without server, engine and chunks: what the server's speech must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.families.bare_family import Spoken
from voice_clone.audio import decode, resample
from voice_clone.codec.chunk import Reference
from voice_clone.families.voxcpm2.decoder_stage import load_decoder
from voice_clone.families.voxcpm2.encoder_stage import load_encoder
from voice_clone.families.voxcpm2.prompt_stage import load_prompt
from voice_clone.families.voxcpm2.talker_stage import load_talker
from voice_clone.lru_cache import Origin
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
        decoded = decode(clip)
        waveform = resample(decoded.waveform, decoded.sample_rate, self.encoder.sample_rate)
        mode = "reference" if transcript is None else "icl"
        artifacts: dict[str, NDArray[Any]] = dict(self.encoder.encode(waveform, mode))
        return ResolvedVoice(artifacts, transcript, mode)

    def speak(
        self, text: str, voice: ResolvedVoice | None, options: dict[str, Any] | None = None, **knobs: Any
    ) -> Spoken:
        """The frames of a speech, and their decode in one piece. Without a voice: in any."""
        speech = SpeechRequest(text, voice=None if voice is None else "anybody", options=options or {}, voiceless=True)
        prepared = self.prompt.prepare(speech, self.prompt.draft(speech), voice)
        plan = self.talker.plan(prepared.tensors, {"seed": 0, **knobs}, options or {})
        source, frames, finish = self.talker.source, [], None
        source.start(0, plan.request)
        while finish is None:
            [frame] = source.step([0])
            finish = frame.finish
            frames += [] if frame.payload is None else [frame.payload]
        source.free(0)
        codes = source.payload.join(frames)
        stream, _ = self.streams.open(Reference(plan.context, plan.voice, Origin.unknown()))
        samples = [*self.streams.decode([stream], [codes]), self.streams.flush(stream)]
        self.streams.close(stream)
        return Spoken(codes, np.concatenate(samples), finish)
