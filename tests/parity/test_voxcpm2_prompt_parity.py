"""VoxCPM2's prompts against voxcpm 2.0.3: token ids, and the order of tokens and frames in all modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.families.voxcpm2_whole import make_voxcpm2, some_voice
from tests.support.oracles.voxcpm import official_ids, official_model
from voice_clone.families.voxcpm2.audio_vae_config import PROMPT_LATENTS, REFERENCE_LATENTS
from voice_clone.families.voxcpm2.config import REFERENCE_BEGIN, REFERENCE_END, TEXT_END, load_config
from voice_clone.families.voxcpm2.prompt import Prompt, Tokenizer, VoxCPM2Prompt, target
from voice_clone.speech import SpeechRequest

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

TEXTS = (
    "Good morning, it's 12 o'clock.",
    " two blanks before",
    "朋友的声音在第一句话之前就能听出来。",
    "a 你好 b你好世界 c 早上好",
    "(whispering)Good evening",
    "Phonemes {ni3}{hao3} and {HH AH0 L OW1}",
    "Emoji 🎉, Übermaß, mañana, 友だち, 친구, ไทย, ᠭ",
    "\u2581\u2581strange\u2581你好",
    "1998/12/05 3.14 $5 100%",
    "tab\tline\nend",
    "天天天气很好很好故事故事故",
)
TRANSCRIPTS = ("The voice of a friend", "The voi", "你好", "你好世界。今天天", "One\n two  ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxcpm2(tmp_path_factory.mktemp("voxcpm2") / "checkpoint")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder, load_config(folder))


@pytest.fixture(scope="module")
def official(folder: Path) -> Any:
    return official_model(folder)


def test_token_ids(tokenizer: Tokenizer, official: Any) -> None:
    for text in TEXTS:
        np.testing.assert_array_equal(tokenizer.text_ids(text), official_ids(official, text), text)
        for transcript in TRANSCRIPTS:
            expected = official_ids(official, transcript + text)
            np.testing.assert_array_equal(tokenizer.joined_ids(transcript, text), expected)


def laid_out(prompt: Prompt) -> tuple[list[int], Tensor]:
    """Ids with 0 for frames, and frames [positions, 4, 64] with zeros for tokens, as the talker reads them."""
    reference = [REFERENCE_BEGIN, *[0] * len(prompt.reference_latents), REFERENCE_END]
    before = reference if len(prompt.reference_latents) else []
    ids = [*before, *prompt.text_ids.tolist(), TEXT_END, *[0] * len(prompt.prompt_latents)]
    frames = np.zeros((len(ids), 256), np.float32)
    if before:
        frames[1 : len(before) - 1] = prompt.reference_latents
    frames[len(ids) - len(prompt.prompt_latents) :] = prompt.prompt_latents
    assert len(ids) == prompt.length
    return ids, torch.from_numpy(frames).view(-1, 4, 64)


@pytest.mark.parametrize("mode", ["reference", "continuation", "ref_continuation"])
def test_prompts(tokenizer: Tokenizer, official: Any, mode: str) -> None:
    stage = VoxCPM2Prompt(cast(Any, None), tokenizer, 1024, 768)
    for number, transcript in enumerate(TRANSCRIPTS):
        voice = some_voice(4 + number, transcript)
        latents = {name: torch.from_numpy(array).view(-1, 4, 64) for name, array in voice.artifacts.items()}
        cache = {"mode": mode, "prompt_text": transcript}
        if mode != "continuation":
            cache["ref_audio_feat"] = latents[REFERENCE_LATENTS]
        if mode != "reference":
            cache["audio_feat"] = latents[PROMPT_LATENTS]
        for text in TEXTS:
            speech = SpeechRequest(text, voice="Ada", options={"mode": mode})
            made = stage.prepare(speech, stage.draft(speech), voice).tensors
            prompt = Prompt(made["text_ids"], made[REFERENCE_LATENTS], made[PROMPT_LATENTS])
            ids, is_text, frames, is_frame, most = seen(official, target(text), cache)
            got_ids, got_frames = laid_out(prompt)
            assert got_ids == ids.tolist(), text
            torch.testing.assert_close(got_frames, frames, rtol=0, atol=0)
            assert torch.equal(is_text == 0, is_frame == 1)
            assert most == 6 * made["target_tokens"].item() + 10


def test_prompts_without_a_voice(tokenizer: Tokenizer, official: Any) -> None:
    stage = VoxCPM2Prompt(cast(Any, None), tokenizer, 1024, 768)
    for text in TEXTS:
        speech = SpeechRequest(text, voiceless=True)
        made = stage.prepare(speech, stage.draft(speech), None).tensors
        ids, is_text, frames, _, most = seen(official, target(text), None)
        got_ids, got_frames = laid_out(Prompt(made["text_ids"], made[REFERENCE_LATENTS], made[PROMPT_LATENTS]))
        assert got_ids == ids.tolist() and bool(is_text.all()), text
        torch.testing.assert_close(got_frames, frames, rtol=0, atol=0)
        assert most == 6 * made["target_tokens"].item() + 10


def seen(official: Any, text: str, cache: dict[str, Any] | None) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """What the official code hands to its language model, and how many frames it grants."""
    replaced = mock.patch.object(official, "_inference", side_effect=KeyboardInterrupt)
    with replaced as inference, pytest.raises(KeyboardInterrupt):
        official.generate_with_prompt_cache(text, prompt_cache=cache, max_len=4096)
    ids, is_text, frames, is_frame = (each[0].cpu() for each in inference.call_args.args)
    return ids, is_text, frames, is_frame, inference.call_args.kwargs["max_len"]
