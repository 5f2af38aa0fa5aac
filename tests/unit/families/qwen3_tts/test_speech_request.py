"""What Qwen3-TTS makes of a request for speech: its language, options, prompt and frame budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from tests.support.families.factories import CheckpointFactory
from tests.support.families.talkers import make_prompt
from voice_clone.errors import Internal, InvalidArgument
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, load_config
from voice_clone.families.qwen3_tts.networks.prompt_reader import prefill_length
from voice_clone.families.qwen3_tts.prompt import Qwen3TTSPrompt, Tokenizer, language_id
from voice_clone.families.qwen3_tts.talker import build_request, frame_budget
from voice_clone.speech import SpeechRequest, read_reply
from voice_clone.stages.protocols import Prepared
from voice_clone.stages.requests import granted_frames


@pytest.fixture(scope="module")
def config(checkpoint_folder: CheckpointFactory) -> Qwen3TTSConfig:
    return load_config(checkpoint_folder("tiny", 0))


def request(**given: Any) -> SpeechRequest:
    return SpeechRequest(**{"text": "Hello.", "voice": "Ada", **given})


INLINE: dict[str, Any] = {"voice": None, "reference_audio": b"clip"}


def test_languages(config: Qwen3TTSConfig) -> None:
    assert language_id(None, config) is None
    assert language_id(" AUTO ", config) is None
    assert language_id("English", config) == config.talker.codec_language_id["english"]
    for unknown in ("Klingon", "sichuan_dialect", "tlh", "en US", "en-", "english-US", "-", "e"):
        with pytest.raises(InvalidArgument, match=r"Auto, Chinese \(zh\), English \(en\)"):
            language_id(unknown, config)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("en", "english"), ("en-US", "english"), ("EN_gb", "english"), ("eng", "english"), ("pt-BR", "portuguese"),
        ("zh-Hans-CN", "chinese"), ("cmn", "chinese"), ("de-AT", "german"), ("ger", "german"), ("fr-CA", "french"),
        ("es-419", "spanish"), ("it", "italian"), ("ja-JP", "japanese"), ("ko", "korean"), (" ru ", "russian"),
    ],
)  # fmt: skip
def test_codes_of_languages(config: Qwen3TTSConfig, code: str, name: str) -> None:
    assert language_id(code, config) == config.talker.codec_language_id[name]


def test_the_frame_budget_counts_tokens_not_characters(
    config: Qwen3TTSConfig, checkpoint_folder: CheckpointFactory
) -> None:  # C14
    budget = frame_budget(config)
    assert budget.most == config.sampling.max_new_tokens
    tokenizer = Tokenizer(checkpoint_folder("tiny", 0))
    chinese, english = "今天天气很好，我们去海边散步吧。" * 4, "The weather is fine. " * 4
    for text in (chinese, english):
        tokens = len(tokenizer.text_ids(text))
        assert granted_frames(budget, tokens, None, 10**6)[0] == max(192, 12 * tokens)
    assert len(tokenizer.text_ids(chinese)) > len(chinese), "a character is several tokens here"


def artifacts(config: Qwen3TTSConfig, frames: int = 5, size: int | None = None) -> bytes:
    codes = np.arange(frames * 16, dtype=np.int32).reshape(frames, 16)
    return save({"speaker_embedding": np.ones(size or config.talker.hidden_size, np.float32), "codec_codes": codes})


@pytest.fixture(scope="module")
def stage(config: Qwen3TTSConfig, checkpoint_folder: CheckpointFactory) -> Qwen3TTSPrompt:
    return Qwen3TTSPrompt(config, Tokenizer(checkpoint_folder("tiny", 0)), 1024)


def prepared(
    stage: Qwen3TTSPrompt, speech: SpeechRequest, result: dict[str, Any], packed: bytes
) -> tuple[Prepared, dict[str, Any]]:
    """The prompt of a speech with an answer of speaker_cache, and what its info says of the voice."""
    voice, source = read_reply(speech, {"mode": "icl", "fingerprint": "f", **result}, packed, 50.0)
    return stage.prepare(speech, stage.draft(speech), voice), source


def test_a_registered_voice_with_a_transcript(config: Qwen3TTSConfig, stage: Qwen3TTSPrompt) -> None:
    result = {"status": "hit", "name": "Ada", "generation": 3, "digest": "c0ffee", "reference_text": "words"}
    prompt, source = prepared(stage, request(), result, artifacts(config))
    assert prompt.info["mode"] == "icl" and prompt.info["reference_frames"] == 5
    assert prompt.tensors["reference_codes"].shape == (5, 16) and len(prompt.tensors["reference_ids"])
    assert source == {"cache": "hit", "voice": "Ada", "generation": 3, "voice_digest": "c0ffee"}
    warning = {"code": "truncated", "message": "the file is cut off"}
    _, source = prepared(stage, request(), {**result, "warnings": [warning]}, artifacts(config))
    assert source["warnings"] == [warning]
    for spent, said in ((20.25, 20.25), (80.0, 50.0)):  # no longer than the speech has waited, 50 ms
        _, source = prepared(stage, request(), {**result, "status": "miss", "extraction_ms": spent}, artifacts(config))
        assert source["cache"] == "miss" and source["encoder_ms"] == said
    alone, _ = prepared(stage, request(x_vector_only=True), result, artifacts(config))
    assert alone.info["mode"] == "x_vector" and alone.tensors["reference_codes"].shape == (0, 16)
    assert not len(alone.tensors["reference_ids"])


def test_a_registered_voice_without_a_transcript(config: Qwen3TTSConfig, stage: Qwen3TTSPrompt) -> None:
    result = {"status": "restored", "name": "Ada", "generation": 3, "digest": "c0ffee"}
    assert prepared(stage, request(), result, artifacts(config, 0))[0].info["mode"] == "x_vector"
    with pytest.raises(InvalidArgument, match="no transcript"):
        prepared(stage, request(x_vector_only=False), result, artifacts(config, 0))


def test_an_inline_clip_brings_its_own_transcript(config: Qwen3TTSConfig, stage: Qwen3TTSPrompt) -> None:
    result = {"status": "miss", "extraction_ms": 20.0}
    prompt, source = prepared(stage, request(**INLINE, reference_text="mine"), result, artifacts(config))
    assert prompt.info["mode"] == "icl" and prompt.info["reference_tokens"]
    assert source == {"cache": "miss", "encoder_ms": 20.0}


def test_sizes(config: Qwen3TTSConfig, stage: Qwen3TTSPrompt) -> None:
    size = config.talker.hidden_size
    for given in (size, size + 1):
        speech = request(voice=None, speaker_embedding=np.ones(given, np.float32))
        if given == size:
            assert stage.prepare(speech, stage.draft(speech), None).info["mode"] == "x_vector"
        else:
            with pytest.raises(InvalidArgument, match=f"needs {size}"):
                stage.prepare(speech, stage.draft(speech), None)
    with pytest.raises(Internal):
        prepared(stage, request(**INLINE), {"status": "hit"}, artifacts(config, size=size + 1))


@pytest.mark.parametrize(
    ("max_frames", "expected"),
    [
        (None, (192, True)),  # what its text is granted
        (50, (50, False)),  # what its caller wanted
        (192, (192, False)),
        (1000, (192, True)),  # the caller's limit would come later
    ],
)
def test_a_request_knows_whose_limit_it_has(
    config: Qwen3TTSConfig, max_frames: int | None, expected: tuple[int, bool]
) -> None:
    knobs = {} if max_frames is None else {"max_frames": max_frames}
    prompt = replace(make_prompt(config, 4), text_ids=np.ones(5, np.int32))
    made = build_request(prompt, {"seed": 1, **knobs}, {}, config, 4096)
    assert (made.max_frames, made.budgeted) == expected


def test_a_budget_is_cut_to_what_fits_the_slot(config: Qwen3TTSConfig) -> None:
    prompt = make_prompt(config, 4)
    made = build_request(prompt, {"seed": 1}, {}, config, 60)
    assert (made.max_frames, made.budgeted) == (60 - prefill_length(prompt), True)
