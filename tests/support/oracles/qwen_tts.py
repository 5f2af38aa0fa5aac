"""The official `qwen_tts` package, importable, for comparison.

It imports torchaudio for its 25 Hz tokenizer, which nothing here uses: an empty module stands in for it. The
package warns on import and when its models are built; those warnings do not concern our tests.

    from tests.support.oracles.qwen_tts import qwen_tts
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support.oracles.packages import KALDI, empty_packages, quiet

Array = np.ndarray[Any, Any]


@cache
def qwen_tts() -> Any:
    """The package. Imported when first asked for: it takes seconds, which only one process of a run shall spend."""
    with quiet():
        # First, so that transformers looks for torchaudio while it is still truly absent.
        import transformers

        transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        for name, module in empty_packages(KALDI).items():
            sys.modules.setdefault(name, module)
        import qwen_tts as package  # type: ignore[import-untyped]
    return package


def load_official(folder: Path) -> Any:
    """The official model of a checkpoint, fp32, on the CPU."""
    with quiet():
        return qwen_tts().Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32, device_map="cpu")


def official_speech(
    official: Any,
    clip: str | tuple[Array, int],
    transcript: str | None,
    text: str,
    language: str,
    frames: int,
    non_streaming: bool = False,
    **sampling: Any,
) -> tuple[Array, Array, Any]:
    """Waveform, codes of the new frames, and the prompt item of the official package.

    Args:
        clip: a path, or samples and rate.
        transcript: asks for in-context cloning.
        sampling: of `generate_voice_clone`; what is not given is as the checkpoint says.
    """
    with quiet():
        [item] = official.create_voice_clone_prompt(clip, transcript, transcript is None)
    waveform, codes = spoken(
        official,
        official.generate_voice_clone,
        frames,
        text=text,
        language=language,
        voice_clone_prompt=[item],
        non_streaming_mode=non_streaming,
        **sampling,
    )
    reference = 0 if item.ref_code is None else len(item.ref_code)
    return waveform, codes[reference:], item


def spoken(official: Any, generate: Callable[..., Any], frames: int, **arguments: Any) -> tuple[Array, Array]:
    """Waveform and codes, those of a reference among them, of a call of one of the model's `generate_...`."""
    seen: list[Array] = []
    tokenizer = official.model.speech_tokenizer
    real = type(tokenizer).decode

    def spy(encoded: Any) -> Any:
        seen.append(encoded[0]["audio_codes"].numpy())
        return real(tokenizer, encoded)

    tokenizer.decode = spy
    try:
        with quiet():
            [waveform], _ = generate(max_new_tokens=frames + 1, **arguments)  # it gives one frame less
    finally:
        del tokenizer.decode
    return waveform, seen[0]
