"""CosyVoice3's texts: the added tokens, layouts, and what may not stand in a text. Its BPE is that of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.families.cosyvoice3 import make_cosyvoice3_talker
from voice_clone.errors import CheckpointError, InvalidArgument
from voice_clone.families.cosyvoice3.config import CONFIG_FILE, load_config
from voice_clone.families.cosyvoice3.prompt import END, SYSTEM, VOCABULARY_FILE, Tokenizer, added_tokens

pytestmark = pytest.mark.thorough

TEXTS = (
    "Good morning, it's 12 o'clock.",
    "  two  spaces \n\n and lines\t",
    "朋友的声音[breath]第一句话[h][ǎo]<strong>早上</strong>",
    "Cafe\u0301 [AA1] [laughter]ha[laughter] [IY]",
    "no [sound] of <ours> |>",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cosyvoice3_talker(tmp_path_factory.mktemp("cosyvoice3") / "checkpoint")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder, load_config(folder))


def test_added_tokens_have_the_released_ids() -> None:
    """Of the released vocabulary, which has 151643 tokens."""
    found = {token: 151643 + index for index, token in enumerate(added_tokens())}
    named = {"<|endoftext|>": 151643, "<|im_end|>": 151645, END: 151646, "[breath]": 151647, "[AA]": 151664}
    assert found.items() >= {**named, "[ǜ]": 151923}.items()
    assert len(found) == 3 + 278


def test_ids_are_those_of_transformers(folder: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer  # slow: each process of a run imports this file

    official = AutoTokenizer.from_pretrained(folder / "CosyVoice-BlankEN")
    official.add_special_tokens({"additional_special_tokens": [*added_tokens()[1:]]})
    assert official.convert_tokens_to_ids("[ǜ]") == tokenizer.text_ids("[ǜ]").item()
    for text in TEXTS:
        assert tokenizer.text_ids(text).tolist() == official(text)["input_ids"], text
        assert tokenizer.reference_ids(text).tolist() == official(f"{SYSTEM}{END}{text}")["input_ids"], text
        assert tokenizer.instruction_ids(text).tolist() == official(f"{SYSTEM} {text}{END}")["input_ids"], text


def test_sounds_are_single_tokens(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.text_ids("[breath]")) == len(tokenizer.text_ids("[uǎng]")) == 1
    assert len(tokenizer.text_ids("[IT]")) > 1


@pytest.mark.parametrize(
    "token",
    [*("<|endofprompt|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|endofsystem|>"), "<|en|>", "<|no such|>"],
)
def test_control_tokens_are_refused(tokenizer: Tokenizer, token: str) -> None:
    for tokenize in (tokenizer.text_ids, tokenizer.reference_ids, tokenizer.instruction_ids):
        with pytest.raises(InvalidArgument, match="remove it"):
            tokenize(f"Good {token} morning")


def test_parts_of_a_control_token_are_text(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.text_ids("a <| b")) and len(tokenizer.text_ids("|> a <|"))
    assert len(tokenizer.text_ids("<|" * 5000)) > 5000  # found at once that none ends


def test_a_prefix_without_a_transcript_ends_with_its_mark(tokenizer: Tokenizer) -> None:
    alone = tokenizer.reference_ids()
    np.testing.assert_array_equal(tokenizer.reference_ids("Hello")[: len(alone)], alone)
    assert alone[-1] == tokenizer.instruction_ids("Whisper.")[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 900}, "has 1168 tokens with the added ones, but vocab_size in .* is 900"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu' is supported"),
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"num_attention_heads": 3}, "is no multiple of num_attention_heads 3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be above 0"),
    ],
)
def test_wrong_configurations_are_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = make_cosyvoice3_talker(tmp_path / "checkpoint")
    values = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps({**values, **change}))
    with pytest.raises(CheckpointError, match=message):
        Tokenizer(folder, load_config(folder))


def test_gaps_in_the_vocabulary_are_refused(tmp_path: Path) -> None:
    folder = make_cosyvoice3_talker(tmp_path / "checkpoint")
    vocabulary = json.loads((folder / VOCABULARY_FILE).read_text(encoding="utf-8"))
    vocabulary["zz"] = len(vocabulary) + 5
    (folder / VOCABULARY_FILE).write_text(json.dumps(vocabulary), encoding="utf-8")
    with pytest.raises(CheckpointError, match="the ids of its tokens are not 0, 1, 2"):
        Tokenizer(folder, load_config(folder))


def test_a_folder_without_the_mark_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        load_config(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"cosyvoice3\.yaml: .*missing"):
        load_config(tmp_path)
