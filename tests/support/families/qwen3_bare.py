"""Qwen3-TTS in this process, without server, engine and chunks: what the server's speech must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.families.small_codec import make_code2wav
from voice_clone.array_kinds import on_host
from voice_clone.audio import decode, resample
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.families.qwen3_tts import codec as decoder_stage
from voice_clone.families.qwen3_tts import encoder as encoder_stage
from voice_clone.families.qwen3_tts import prompt as prompt_stage
from voice_clone.families.qwen3_tts import talker as talker_stage
from voice_clone.families.qwen3_tts.config import load_config
from voice_clone.families.qwen3_tts.prompt import Prompt, Tokenizer, language_id
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.settings import Settings
from voice_clone.speech import SpeechRequest

GREEDY = SamplingParameters(seed=0, do_sample=False, subtalker_do_sample=False)


class BareQwen3:
    """The networks of a checkpoint, one after the other. Neither request nor defaults of a server play a part."""

    def __init__(self, folder: Path) -> None:
        settings = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(folder), "VOICE_CLONE_PRECISION": "fp32"})
        stage = decoder_stage.load_decoder(settings)
        self.decoder, self._form, self.config = stage.decoder, stage.form, load_config(folder)
        if self.config.kind == "base":
            self.speaker_encoder, _, _ = encoder_stage.load_speaker_encoder(settings)
            self.codec_encoder, _, _ = encoder_stage.load_codec_encoder(settings)
        self.prompt_stage = prompt_stage.load_prompt(settings)
        self.talker = talker_stage.load_network(settings)
        self.tokenizer = Tokenizer(folder)

    def embed(self, clip: bytes) -> NDArray[Any]:
        """The speaker embedding of an audio file."""
        return on_host(self.speaker_encoder.embed(self._at_24k(clip)))

    def encode(self, clip: bytes) -> NDArray[Any]:
        """Its codes, int32 [frames, 16]."""
        return on_host(self.codec_encoder.encode(self._at_24k(clip))).astype(np.int32)

    def _at_24k(self, clip: bytes) -> NDArray[np.float32]:
        decoded = decode(clip)
        return resample(decoded.waveform, decoded.sample_rate, 24000)

    def prompt(
        self,
        text: str,
        voice: bytes | NDArray[Any],
        transcript: str | None = None,
        language: str = "Auto",
        non_streaming: bool = False,
    ) -> Prompt:
        """`voice` is an audio file or a speaker embedding; with a transcript it is cloned in context."""
        given: dict[str, Any] = {}
        if transcript is not None:
            assert isinstance(voice, bytes)
            given = {"reference_codes": self.encode(voice), "reference_ids": self.tokenizer.reference_ids(transcript)}
        return Prompt(
            role_ids=self.tokenizer.role_ids,
            text_ids=self.tokenizer.text_ids(text),
            speaker_embedding=self.embed(voice) if isinstance(voice, bytes) else voice,
            language_id=language_id(language, self.config),
            non_streaming_mode=non_streaming,
            **given,
        )

    def prompt_of(self, speech: SpeechRequest, non_streaming: bool = False) -> Prompt:
        """Of a speech without a clip, by the prompt stage."""
        prepared = self.prompt_stage.prepare(speech, self.prompt_stage.draft(speech), None)
        return talker_stage.read_prompt(prepared.tensors, non_streaming)

    def codes(self, prompt: Prompt, frames: int, sampling: SamplingParameters = GREEDY) -> NDArray[Any]:
        """Of the speech, int32 [frames, 16]."""
        generator = Generator(self.talker, slots=1, max_length=1024)
        generator.start(0, TalkerRequest(prompt, sampling, frames))
        codes = []
        while True:
            [frame] = generator.step([0])
            if frame.payload is not None:
                codes.append(frame.payload)
            if frame.finish is not None:
                return np.array(codes, np.int32).reshape(-1, prompt.reference_codes.shape[1] or 16)

    def waveform(self, prompt: Prompt, codes: NDArray[Any], chunk: int | None = None) -> NDArray[Any]:
        """Codes decoded behind those of the reference, so many frames at once; None: all."""
        code2wav = make_code2wav(self.decoder, self._form)
        parts = []
        chunk = chunk or len(codes)
        for index, start in enumerate(range(0, len(codes), chunk)):
            context = prompt.reference_codes if index == 0 else codes[:0]
            final = start + chunk >= len(codes)
            [decoded] = code2wav.decode([CodecChunk("s", index, codes[start : start + chunk], context, final)])
            assert isinstance(decoded, Decoded), decoded
            parts.append(decoded.waveform)
        assert code2wav.streams == 0
        return np.concatenate(parts)

    def speak(self, prompt: Prompt, frames: int, sampling: SamplingParameters) -> NDArray[Any]:
        """Samples of a speech, float32."""
        return self.waveform(prompt, self.codes(prompt, frames, sampling))
