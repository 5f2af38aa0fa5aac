"""A checkpoint speaks without a server: the stages' networks one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from voice_clone.array_kinds import on_host
from voice_clone.autoregressive.generator import Generator
from voice_clone.families.qwen3_tts.codec import load_torch_decoder
from voice_clone.families.qwen3_tts.encoder import load_codec_encoder, load_speaker_encoder
from voice_clone.families.qwen3_tts.talker import build_request, load_network, load_torch_network
from voice_clone.families.qwen3_tts.text import Prompt, Tokenizer
from voice_clone.settings import Settings

MAX_LENGTH = 1024  # positions of prompt and speech


class BareEngine:
    """A loaded checkpoint: a `tools.demo_voice.evaluation.Voice`.

    Args:
        folder: of the checkpoint.
        eager: torch computes the talker, too, as it does on a GPU; else native code, as on a CPU.
    """

    def __init__(self, folder: Path, eager: bool = False) -> None:
        environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(folder), "VOICE_CLONE_PRECISION": "fp32"}
        settings = Settings({}, environ={**environ, "VOICE_CLONE_DEVICE": "cpu"})
        talker = load_torch_network(settings) if eager else load_network(settings)
        self._config = talker.config
        self._generator: Generator[Prompt] = Generator(talker, 1, MAX_LENGTH)
        self._decoder, _ = load_torch_decoder(settings)
        self._speaker_encoder, _, _ = load_speaker_encoder(settings)
        self._codec_encoder, _, _ = load_codec_encoder(settings)
        self._tokenizer = Tokenizer(folder)
        self.sample_rate = self._config.codec.output_sample_rate

    def say(
        self, text: str, clip: NDArray[np.float32], transcript: str | None, seed: int, **knobs: Any
    ) -> NDArray[np.float32]:
        """Speak `text` in the voice of `clip` (24 kHz); in context with its transcript, else by its embedding."""
        books = self._config.talker.num_code_groups
        reference = np.zeros((0, books), np.int32)
        reference_ids = np.zeros(0, np.int32)
        if transcript is not None:
            reference = self.encode(clip)
            reference_ids = self._tokenizer.reference_ids(transcript)
        prompt = Prompt(
            role_ids=self._tokenizer.role_ids,
            text_ids=self._tokenizer.text_ids(text),
            speaker_embedding=on_host(self._speaker_encoder.embed(clip)),
            reference_ids=reference_ids,
            reference_codes=reference,
        )
        codes = self._codes(prompt, {"seed": seed, **knobs})
        whole = np.concatenate([reference, codes]) if len(codes) else codes
        return self.decode(whole)[len(reference) * self._config.codec.decode_upsample_rate :]

    def encode(self, clip: NDArray[np.float32]) -> NDArray[np.int32]:
        """The codes of a clip (24 kHz): int32 [frames, codebooks]."""
        return on_host(self._codec_encoder.encode(clip)).astype(np.int32)

    def decode(self, codes: NDArray[np.int32]) -> NDArray[np.float32]:
        """The audio of frames: [frames, codebooks] -> [samples]."""
        if len(codes) == 0:
            return np.zeros(0, np.float32)
        audio: NDArray[np.float32] = self._decoder(torch.from_numpy(codes.T.astype(np.int64))[None])[0].numpy()
        return audio

    def _codes(self, prompt: Prompt, knobs: Mapping[str, Any]) -> NDArray[np.int32]:
        request = build_request(prompt, knobs, {}, self._config, MAX_LENGTH)
        frames = []
        self._generator.start(0, request)
        try:
            while True:
                [frame] = self._generator.step([0])
                if frame.payload is not None:
                    frames.append(frame.payload)
                if frame.finish is not None:
                    break
        finally:
            self._generator.free(0)
        return np.stack(frames) if frames else np.zeros((0, prompt.reference_codes.shape[1]), np.int32)
