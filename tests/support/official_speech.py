"""A speech by the public interface of the official package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support.official import quiet, qwen_tts


def load_official(folder: Path) -> Any:
    """The official model of a checkpoint, fp32, on the CPU."""
    with quiet():
        return qwen_tts().Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32, device_map="cpu")


def official_speech(
    official: Any,
    clip: str | tuple[np.ndarray, int],
    transcript: str | None,
    text: str,
    language: str,
    frames: int,
    non_streaming: bool = False,
    **sampling: Any,
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Waveform, codes of the new frames, and the prompt item of the official package.

    Args:
        clip: a path, or samples and rate.
        transcript: asks for in-context cloning.
        sampling: of `generate_voice_clone`; what is not given is as the checkpoint says.
    """
    with quiet():
        [item] = official.create_voice_clone_prompt(clip, transcript, transcript is None)
        seen: list[np.ndarray] = []
        tokenizer = official.model.speech_tokenizer
        real = type(tokenizer).decode

        def spy(encoded: Any) -> Any:
            seen.append(encoded[0]["audio_codes"].numpy())
            return real(tokenizer, encoded)

        tokenizer.decode = spy
        try:
            [waveform], _ = official.generate_voice_clone(
                text,
                language,
                voice_clone_prompt=[item],
                non_streaming_mode=non_streaming,
                max_new_tokens=frames + 1,  # the official package gives one frame less
                **sampling,
            )
        finally:
            del tokenizer.decode
    reference = 0 if item.ref_code is None else len(item.ref_code)
    return waveform, seen[0][reference:], item
