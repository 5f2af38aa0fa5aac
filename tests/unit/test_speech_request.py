"""The rules of a request for speech, and the voice that comes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from tests.conftest import CheckpointFactory
from voice_clone.errors import Internal, InvalidArgument
from voice_clone.families.qwen3_tts.cloned_voice import from_cache, from_embedding
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, load_config
from voice_clone.families.qwen3_tts.speech_request import SpeechRequest, frame_budget
from voice_clone.families.qwen3_tts.text import Tokenizer


@pytest.fixture(scope="module")
def config(checkpoint_folder: CheckpointFactory) -> Qwen3TTSConfig:
    return load_config(checkpoint_folder("tiny", 0))


def request(**given: Any) -> SpeechRequest:
    return SpeechRequest(**{"text": "Hello.", "voice": "Ada", **given})


EMBEDDING = np.ones(8, np.float32)
INLINE: dict[str, Any] = {"voice": None, "reference_audio": b"clip"}
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"text": ""}, "blank"),
    ({"text": "\n\t "}, "blank"),
    ({"voice": None}, "exactly one"),
    ({"reference_audio": b"clip"}, "exactly one"),
    ({"speaker_embedding": EMBEDDING}, "exactly one"),
    ({**INLINE, "speaker_embedding": EMBEDDING}, "exactly one"),
    ({"reference_text": "words"}, "registered voice"),
    ({"voice": None, "speaker_embedding": EMBEDDING, "reference_text": "words"}, "reference_text"),
    ({**INLINE, "reference_text": " "}, "blank"),
    ({**INLINE, "reference_text": "words", "x_vector_only": True}, "x_vector_only"),
    ({**INLINE, "x_vector_only": False}, "transcript"),
    ({"voice": None, "speaker_embedding": EMBEDDING, "x_vector_only": False}, "x-vector"),
    ({"voice": None, "speaker_embedding": EMBEDDING * np.nan}, "NaN"),
]


@pytest.mark.parametrize(("given", "text"), CONTRADICTIONS)
def test_a_contradiction_is_refused(given: dict[str, Any], text: str) -> None:  # B11
    with pytest.raises(InvalidArgument, match=text):
        request(**given)


def test_the_mode_of_a_clip() -> None:
    assert request(**INLINE).clip_mode == "x_vector"
    assert request(**INLINE, reference_text="words").clip_mode == "icl"


def test_languages(config: Qwen3TTSConfig) -> None:
    assert request().language_id(config) is None
    assert request(language=" AUTO ").language_id(config) is None
    assert request(language="English").language_id(config) == config.talker.codec_language_id["english"]
    for unknown in ("Klingon", "sichuan_dialect"):
        with pytest.raises(InvalidArgument, match="English"):
            request(language=unknown).language_id(config)


def test_the_frame_budget_counts_tokens_not_characters(checkpoint_folder: CheckpointFactory) -> None:  # C14
    assert frame_budget(1, None, 8192) == 192
    assert frame_budget(100, None, 8192) == 1200
    assert frame_budget(100, 50, 8192) == 50
    assert frame_budget(100, 10**6, 8192) == 1200
    assert frame_budget(10**4, None, 8192) == 8192
    with pytest.raises(InvalidArgument, match="at least 1"):
        frame_budget(1, 0, 8192)
    tokenizer = Tokenizer(checkpoint_folder("tiny", 0))
    chinese, english = "今天天气很好，我们去海边散步吧。" * 4, "The weather is fine. " * 4
    for text in (chinese, english):
        tokens = len(tokenizer.text_ids(text))
        assert frame_budget(tokens, None, 10**6) == max(192, 12 * tokens)
    assert len(tokenizer.text_ids(chinese)) > len(chinese), "a character is several tokens here"


def artifacts(config: Qwen3TTSConfig, frames: int = 5, size: int | None = None) -> bytes:
    codes = np.arange(frames * 16, dtype=np.int32).reshape(frames, 16)
    return save({"speaker_embedding": np.ones(size or config.talker.hidden_size, np.float32), "codec_codes": codes})


def test_a_registered_voice_with_a_transcript(config: Qwen3TTSConfig) -> None:
    result = {"status": "hit", "name": "Ada", "generation": 3, "reference_text": "words"}
    voice = from_cache(result, artifacts(config), request(), config)
    assert voice.mode == "icl" and voice.transcript == "words" and voice.codes.shape == (5, 16)
    assert voice.info == {"cache": "hit", "voice": "Ada", "generation": 3}
    alone = from_cache(result, artifacts(config), request(x_vector_only=True), config)
    assert alone.mode == "x_vector" and alone.codes.shape == (0, 16)


def test_a_registered_voice_without_a_transcript(config: Qwen3TTSConfig) -> None:
    result = {"status": "restored", "name": "Ada", "generation": 3}
    assert from_cache(result, artifacts(config, 0), request(), config).mode == "x_vector"
    with pytest.raises(InvalidArgument, match="no transcript"):
        from_cache(result, artifacts(config, 0), request(x_vector_only=False), config)


def test_an_inline_clip_brings_its_own_transcript(config: Qwen3TTSConfig) -> None:
    asked = request(**INLINE, reference_text="mine")
    voice = from_cache({"status": "miss"}, artifacts(config), asked, config)
    assert voice.transcript == "mine" and voice.info == {"cache": "miss"}


def test_sizes(config: Qwen3TTSConfig) -> None:
    size = config.talker.hidden_size
    assert from_embedding(np.ones(size, np.float32), config).mode == "x_vector"
    with pytest.raises(InvalidArgument, match=f"needs {size}"):
        from_embedding(np.ones(size + 1, np.float32), config)
    with pytest.raises(Internal):
        from_cache({"status": "hit"}, artifacts(config, size=size + 1), request(**INLINE), config)
