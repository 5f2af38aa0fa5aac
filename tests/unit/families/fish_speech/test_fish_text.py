"""The prompt's tokens: part by part, control tokens refused, tags and speakers as text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from tests.support.families.fish import make_fish
from voice_clone.errors import CheckpointError, InvalidArgument
from voice_clone.families.fish_speech.config import load_config
from voice_clone.families.fish_speech.prompt import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fish(tmp_path_factory.mktemp("fish") / "checkpoint")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder, load_config(folder))


@pytest.fixture(scope="module")
def plain(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def encoded(plain: tokenizers.Tokenizer, *parts: str) -> np.ndarray:
    return np.array([index for part in parts for index in plain.encode(part, add_special_tokens=False).ids])


def test_each_part_is_encoded_by_itself(tokenizer: Tokenizer, plain: tokenizers.Tokenizer) -> None:
    instruction = "convert the provided text to speech reference to the following:\n\nText:\n"
    wanted = encoded(plain, "<|im_start|>system\n", instruction, "<|speaker:0|>Hello.\n", "\n\nSpeech:\n")
    np.testing.assert_array_equal(tokenizer.reference_ids("Hello.\n"), wanted)
    whole = encoded(plain, f"<|im_start|>system\n{instruction}<|speaker:0|>Hello.\n\n\nSpeech:\n")
    assert len(whole) != len(wanted), "line breaks merge across parts that are encoded as one"
    wanted = encoded(
        plain, "<|im_end|>\n", "<|im_start|>user\n", "\n\n Hi", "<|im_end|>\n", "<|im_start|>assistant\n<|voice|>"
    )
    np.testing.assert_array_equal(tokenizer.text_ids("\n\n Hi"), wanted)
    assert tokenizer.text_ids("a").dtype == np.int32


def test_a_transcript_with_a_speaker_keeps_it(tokenizer: Tokenizer, plain: tokenizers.Tokenizer) -> None:
    ids = tokenizer.reference_ids("<|speaker:3|>Hello.")
    assert plain.decode(ids.tolist(), skip_special_tokens=False).count("<|speaker:") == 1
    assert "<|speaker:0|>Hello." in plain.decode(tokenizer.reference_ids("Hello.").tolist())


@pytest.mark.parametrize(
    "token",
    [
        *("<|im_start|>", "<|im_end|>", "<|voice|>", "<|text|>", "<|audio_start|>", "<|audio_pad|>", "<|semantic:0|>"),
        *("<|semantic:4095|>", "<|endoftext|>", "<|pad|>", "<tool_call>", "<think>"),
    ],
)
def test_control_tokens_are_refused(tokenizer: Tokenizer, token: str) -> None:
    for ids, name in ((tokenizer.text_ids, "text"), (tokenizer.reference_ids, "reference_text")):
        for text in (token, f"Hello {token} there", f"{token}{token}"):
            with pytest.raises(InvalidArgument, match=f"the {name} holds .* a control token"):
                ids(text)


@pytest.mark.parametrize(
    "text",
    ["[whisper] hello", "<|speaker:0|>Hi <|speaker:1|>there", "<|phoneme_start|>h<|phoneme_end|>", "<|nothing|>", "<|"],
)
def test_tags_speakers_and_phonemes_are_allowed(tokenizer: Tokenizer, text: str) -> None:
    assert len(tokenizer.text_ids(text)) > 0


def test_each_turn_is_a_line(tokenizer: Tokenizer) -> None:
    """As the official code groups the turns of speakers; it would drop what stands before the first one."""
    given = "Once upon a time <|speaker:0|> Hi. \n <|speaker:12|>there\n\n"
    np.testing.assert_array_equal(
        tokenizer.text_ids(given), tokenizer.text_ids("Once upon a time\n<|speaker:0|> Hi.\n<|speaker:12|>there")
    )
    assert len(tokenizer.text_ids(" no speaker ")) > len(tokenizer.text_ids("no speaker"))


def disagreeing(folder: Path, made: Path, **changes: int) -> Path:
    """The same checkpoint whose config.json has numbers that differ by so much."""
    for file in folder.iterdir():
        if file.name != "config.json":
            (made / file.name).symlink_to(file)
    values = json.loads((folder / "config.json").read_text())
    for name, change in changes.items():
        (values if name in values else values["text_config"])[name] += change
    (made / "config.json").write_text(json.dumps(values))
    return made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"semantic_start_token_id": -1, "semantic_end_token_id": -1}, r"semantic:0\|> does not have the id"),
        ({"eos_token_id": 1}, r"<\|im_end\|> does not have the id"),
        ({"vocab_size": 100}, None),
    ],
)
def test_the_configuration_must_agree(
    folder: Path, tmp_path: Path, changes: dict[str, int], message: str | None
) -> None:
    changed = disagreeing(folder, tmp_path, **changes)
    if message is None:
        Tokenizer(changed, load_config(changed))
        return
    with pytest.raises(CheckpointError, match=message):
        Tokenizer(changed, load_config(changed))


def test_a_token_between_two_codes_is_noticed(folder: Path, tmp_path: Path) -> None:
    """Both ends of the codes are where they should be, two in the middle have changed places."""
    changed = disagreeing(folder, tmp_path)
    content = (folder / "tokenizer.json").read_text()
    for old, new in (("semantic:5|", "semantic:x|"), ("semantic:6|", "semantic:5|"), ("semantic:x|", "semantic:6|")):
        content = content.replace(f"<|{old}>", f"<|{new}>")
    (changed / "tokenizer.json").unlink()
    (changed / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"semantic:5\|> does not have the id"):
        Tokenizer(changed, load_config(changed))


def test_tokens_beyond_the_vocabulary_are_noticed(folder: Path, tmp_path: Path) -> None:
    changed = disagreeing(folder, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["one more"])
    (changed / "tokenizer.json").unlink()
    tokenizer.save(str(changed / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="tokens, but text_config"):
        Tokenizer(changed, load_config(changed))
