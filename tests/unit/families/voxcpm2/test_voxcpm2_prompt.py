"""VoxCPM2's prompt stage: texts, modes, styles, and what is refused before a clip is encoded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from tests.support.families.voxcpm2_whole import make_voxcpm2, some_voice
from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported
from voice_clone.families.voxcpm2.audio_vae_config import PROMPT_LATENTS, REFERENCE_LATENTS
from voice_clone.families.voxcpm2.config import load_config
from voice_clone.families.voxcpm2.prompt import (
    TARGET_TOKENS,
    TOKENIZER_FILE,
    Prompt,
    Tokenizer,
    VoxCPM2Prompt,
    load_prompt,
    target,
)
from voice_clone.settings import Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import Prepared

pytestmark = pytest.mark.thorough

TEXT, TRANSCRIPT = "Good morning, friends.", "The voice of a friend "


def settings(folder: Path) -> Settings:
    return Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(folder)}, "voxcpm2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxcpm2(tmp_path_factory.mktemp("voxcpm2") / "checkpoint")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder, load_config(folder))


@pytest.fixture(scope="module")
def stage(folder: Path) -> VoxCPM2Prompt:
    return load_prompt(settings(folder))


def prepared(stage: VoxCPM2Prompt, voice: ResolvedVoice, text: str = TEXT, **options: Any) -> Prepared:
    speech = SpeechRequest(text, voice="Ada", options=options)
    return stage.prepare(speech, stage.draft(speech), voice)


def read(made: Prepared) -> Prompt:
    return Prompt(**{name: made.tensors[name] for name in ("text_ids", REFERENCE_LATENTS, PROMPT_LATENTS)})


@pytest.mark.parametrize(
    ("transcript", "options", "mode", "reference", "prompt"),
    [
        (TRANSCRIPT, {}, "ref_continuation", 7, 7),
        (TRANSCRIPT, {"mode": "ref_continuation"}, "ref_continuation", 7, 7),
        (TRANSCRIPT, {"mode": "continuation"}, "continuation", 0, 7),
        (TRANSCRIPT, {"mode": "reference"}, "reference", 7, 0),
        (TRANSCRIPT, {"style": "whispering"}, "reference", 7, 0),
        (TRANSCRIPT, {"style": "whispering", "mode": "reference"}, "reference", 7, 0),
        (None, {}, "reference", 7, 0),
        (None, {"mode": "reference"}, "reference", 7, 0),
    ],
)
def test_the_mode_says_what_is_heard(
    stage: VoxCPM2Prompt,
    tokenizer: Tokenizer,
    transcript: str | None,
    options: dict[str, str],
    mode: str,
    reference: int,
    prompt: int,
) -> None:
    voice = some_voice(7, transcript)
    made = prepared(stage, voice, **options)
    assert made.info["mode"] == mode
    got = read(made)
    assert (len(got.reference_latents), len(got.prompt_latents)) == (reference, prompt)
    for name in (REFERENCE_LATENTS, PROMPT_LATENTS):
        if len(made.tensors[name]):
            np.testing.assert_array_equal(made.tensors[name], voice.artifacts[name])
    styled = target(TEXT, options.get("style"))
    expected = tokenizer.joined_ids(TRANSCRIPT, styled) if prompt else tokenizer.text_ids(styled)
    np.testing.assert_array_equal(got.text_ids, expected)
    assert made.tensors[TARGET_TOKENS].tolist() == [len(tokenizer.text_ids(styled))]
    assert made.tensors[TARGET_TOKENS].dtype == np.int32


@pytest.mark.parametrize("style", [None, "an old man, gently"])
def test_without_a_voice_only_the_text_is_read(stage: VoxCPM2Prompt, tokenizer: Tokenizer, style: str | None) -> None:
    options = {} if style is None else {"style": style}
    speech = SpeechRequest(TEXT, options=options, voiceless=True)
    made = stage.prepare(speech, stage.draft(speech), None)
    got = read(made)
    assert made.info["mode"] == "zero_shot" and len(got.reference_latents) == len(got.prompt_latents) == 0
    np.testing.assert_array_equal(got.text_ids, tokenizer.text_ids(target(TEXT, style)))
    asked = SpeechRequest(TEXT, options={"mode": "reference"}, voiceless=True)
    with pytest.raises(InvalidArgument, match="give a voice or reference_audio"):
        stage.draft(asked)


def test_transcript_and_text_are_one_string(tokenizer: Tokenizer) -> None:
    """A token spans both: apart they are other tokens."""
    joined = tokenizer.joined_ids("The voi", "ce of a friend")
    np.testing.assert_array_equal(joined, tokenizer.text_ids("The voice of a friend"))
    assert joined.tolist() != [*tokenizer.reference_ids("The voi"), *tokenizer.text_ids("ce of a friend")]


@pytest.mark.parametrize(
    ("text", "style", "expected"),
    [
        ("Good  morning,\n\n friends.\t", None, "Good morning, friends. "),
        (" Good\u3000morning", None, " Good morning"),
        ("Hello", "whispering", "(whispering)Hello"),
        (" Hello", " (very) \uff08softly\uff09\n now ", "(very softly now) Hello"),
        ("(softly) Hello", None, "(softly) Hello"),
    ],
)
def test_what_the_model_reads(text: str, style: str | None, expected: str) -> None:
    assert target(text, style) == expected


def test_white_space_in_a_transcript_stays(stage: VoxCPM2Prompt, tokenizer: Tokenizer) -> None:
    made = prepared(stage, some_voice(3, "One\n two  "), "three  four")
    np.testing.assert_array_equal(made.tensors["text_ids"], tokenizer.text_ids("One\n two  three four"))


def test_chinese_characters_are_tokens_of_their_own(folder: Path, tokenizer: Tokenizer) -> None:
    plain = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    several = {token for token in plain.get_vocab() if len(token) > 1 and all("\u4e00" <= c <= "\u9fff" for c in token)}

    def words(tokens: list[str]) -> set[str]:
        return {token.replace("\u2581", "") for token in tokens}

    for text in ("a世界", "b世界 c 世界", "a一句话之前。"):
        assert words(plain.encode(text).tokens) & several, text
        tokens = [plain.id_to_token(index) for index in tokenizer.text_ids(text)]
        assert not words(tokens) & several, text
        assert "".join(tokens).replace("\u2581", "") == text.replace(" ", "")


@pytest.mark.parametrize("token", ["<s>", "</s>", "<unk>", "<|audio_start|>", "<|ref_audio_end|>"])
def test_control_tokens_are_refused(stage: VoxCPM2Prompt, token: str) -> None:
    text, style = f"Good {token} morning", f"very {token} softly"
    for given, where in (
        (SpeechRequest(text, voice="Ada"), "text"),
        (SpeechRequest(TEXT, voice="Ada", options={"style": style}), "text"),
        (SpeechRequest(TEXT, reference_audio=b"...", reference_text=text), "reference_text"),
    ):
        with pytest.raises(InvalidArgument, match=rf"the {where} holds .*, a control token; remove it"):
            stage.draft(given)
    with pytest.raises(InvalidArgument, match="the reference_text holds"):
        prepared(stage, some_voice(3, text))
    with pytest.raises(InvalidArgument, match="the text holds"):
        prepared(stage, some_voice(3, f"Good {token[:2]}"), f"{token[2:]} morning")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"x_vector_only": True}, "takes no speaker embedding"),
        ({"options": {"inference_timesteps": 10.0}}, "inference_timesteps is 10.0; it must be of type int"),
        ({"options": {"style": "softly", "mode": "continuation"}}, "would be read aloud in the mode continuation"),
        ({"options": {"style": "softly", "mode": "ref_continuation"}}, "read aloud in the mode ref_continuation"),
        ({"options": {"style": "softly"}, "x_vector_only": False}, "with options.style the voice is not cloned in"),
        ({"options": {"mode": "reference"}, "x_vector_only": False}, "with options.mode the voice is not cloned in"),
        (
            {"options": {"mode": "continuation"}, "voice": None, "reference_audio": b"..."},
            "continuation needs the clip's transcript, .* or use options.mode reference",
        ),
    ],
)
def test_speeches_that_are_refused(stage: VoxCPM2Prompt, asked: dict[str, Any], message: str) -> None:
    speech = SpeechRequest(**{"text": TEXT, "voice": "Ada", **asked})
    with pytest.raises((InvalidArgument, Unsupported), match=message):
        stage.draft(speech)


def test_a_voice_without_a_transcript_does_not_go_on(stage: VoxCPM2Prompt) -> None:
    for mode in ("continuation", "ref_continuation"):
        with pytest.raises(InvalidArgument, match=f"{mode} needs the clip's transcript, and this voice has"):
            prepared(stage, some_voice(3), mode=mode)


def changed(folder: Path, made: Path, change: Any) -> Path:
    """A copy of the tokenizer and the configuration, with a change of the tokenizer."""
    made.mkdir()
    (made / "config.json").write_bytes((folder / "config.json").read_bytes())
    values = json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    change(values)
    (made / TOKENIZER_FILE).write_text(json.dumps(values), encoding="utf-8")
    return made


def test_tokenizers_that_are_refused(folder: Path, tmp_path: Path) -> None:
    def more(values: dict[str, Any]) -> None:
        values["model"]["vocab"]["zzz"] = 5000

    def broken(values: dict[str, Any]) -> None:
        values["model"]["merges"] = 3

    def lacking(values: dict[str, Any]) -> None:
        vocabulary = values["model"]["vocab"]
        vocabulary["\u4e08\u4e09"] = vocabulary.pop("<|unused_1500|>")
        values["model"]["unk_token"] = None

    for number, (change, message) in enumerate(
        (
            (more, r"has 5001 tokens, but lm_config.vocab_size in config.json is 1536"),
            (broken, "not a tokenizer that can be read"),
            (lacking, "lacks a character of the token"),
        )
    ):
        made = changed(folder, tmp_path / str(number), change)
        with pytest.raises(CheckpointError, match=f"^{TOKENIZER_FILE}: {message}"):
            Tokenizer(made, load_config(made))
    (made / TOKENIZER_FILE).unlink()
    with pytest.raises(CheckpointError, match="the file is missing"):
        Tokenizer(made, load_config(made))
