"""Text to ids: the template, control tokens, and the files a tokenizer may come from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tools.families.qwen3_tts.checkpoint_config import SPECIAL_TOKENS, write_tokenizer
from voice_clone.errors import CheckpointError, InvalidArgument
from voice_clone.families.qwen3_tts.prompt import Tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, None)
    return tmp_path


def vocabulary(folder: Path) -> dict[str, int]:
    loaded: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    return loaded


def text_of(folder: Path, ids: npt.NDArray[np.int32]) -> str:
    """The bytes that ids of plain text stand for, from vocab.json alone."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    tokens = {index: token for token, index in vocabulary(folder).items()}
    return bytes(byte_of[letter] for index in ids for letter in tokens[int(index)]).decode()


def test_ids_stand_for_the_text(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    for text in ("Hello, world!", "  two spaces  ", "朋友的声音 12", "🙂\u200d", "tab\tand\r\nbreaks\n\n"):
        ids = tokenizer.text_ids(text)
        assert ids.dtype == np.int32 and ids.ndim == 1
        assert text_of(folder, ids) == text
        assert tokenizer.reference_ids(text).tolist() == ids.tolist()


def test_role_ids(folder: Path) -> None:
    special = vocabulary(folder)
    first_special = len(special)
    role = Tokenizer(folder).role_ids
    assert role.dtype == np.int32
    assert role.tolist() == [first_special + SPECIAL_TOKENS.index("<|im_start|>"), special["assistant"], special["Ċ"]]


def test_text_is_composed_first(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    assert tokenizer.text_ids("re\u0301sume\u0301").tolist() == tokenizer.text_ids("r\u00e9sum\u00e9").tolist()


def test_merges_are_used(folder: Path) -> None:
    assert Tokenizer(folder).text_ids("assistant").tolist() == [vocabulary(folder)["assistant"]]


@pytest.mark.parametrize("token", [token for token in SPECIAL_TOKENS if token.startswith(("<|im", "<tts", "<|end"))])
@pytest.mark.parametrize("text", ["{}", "a {} b", "{}\n<|im_start|>assistant\n", "x{}"])
def test_control_tokens_are_refused(folder: Path, token: str, text: str) -> None:
    tokenizer = Tokenizer(folder)
    for encode in (tokenizer.text_ids, tokenizer.reference_ids):
        with pytest.raises(InvalidArgument, match="control token"):
            encode(text.format(token))


@pytest.mark.parametrize("text", ["<|im_end|", "|im_end|>", "<|IM_END|>", "< |im_end|>", "im_end", "<"])
def test_text_that_resembles_a_control_token_stays_text(folder: Path, text: str) -> None:
    assert text_of(folder, Tokenizer(folder).text_ids(text)) == text


def test_added_tokens_that_control_nothing_are_one_id(folder: Path) -> None:
    expected = len(vocabulary(folder)) + SPECIAL_TOKENS.index("<think>")
    assert Tokenizer(folder).text_ids("<think>").tolist() == [expected]


def test_blank_text_has_its_own_ids_or_none(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    assert tokenizer.text_ids("").tolist() == []
    assert text_of(folder, tokenizer.text_ids("   ")) == "   "


def test_tokenizer_json_gives_the_same_ids(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    ours = Tokenizer(folder)
    other = tmp_path_factory.mktemp("json")
    built = ours.vocabulary.library
    built.enable_truncation(4)  # as some published files have it: not to be obeyed
    built.save(str(other / "tokenizer.json"))
    built.no_truncation()
    text = "The voice of a friend, 12 times; c'est la même, 朋友。"
    assert Tokenizer(other).text_ids(text).tolist() == ours.text_ids(text).tolist()
    assert Tokenizer(other).role_ids.tolist() == ours.role_ids.tolist()


def test_released_ids(tmp_path: Path) -> None:
    ids = write_tokenizer(tmp_path, 151643)
    assert Tokenizer(tmp_path).role_ids.tolist() == [151644, 77091, 198]
    assert [ids[token] for token in ("<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")] == [
        151645,
        151671,
        151672,
        151673,
    ]


class TestRefusals:
    def message(self, folder: Path) -> str:
        with pytest.raises(CheckpointError) as caught:
            Tokenizer(folder)
        assert str(folder) not in str(caught.value)
        return str(caught.value)

    @pytest.mark.parametrize("file", ["vocab.json", "merges.txt"])
    def test_a_missing_file(self, folder: Path, file: str) -> None:
        (folder / file).unlink()
        assert self.message(folder) == f"{file}: the file is missing from the checkpoint folder"

    def test_merges_of_another_vocabulary(self, folder: Path) -> None:
        with (folder / "merges.txt").open("a", encoding="utf-8") as file:
            file.write("assistant assistant\n")
        assert self.message(folder).startswith("merges.txt: ")

    def test_no_special_tokens(self, folder: Path) -> None:
        (folder / "tokenizer_config.json").unlink()
        assert self.message(folder).startswith("tokenizer_config.json: ")

    def test_special_tokens_of_another_vocabulary(self, folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text())
        settings["added_tokens_decoder"] = {
            str(int(index) + 1): token for index, token in settings["added_tokens_decoder"].items()
        }
        path.write_text(json.dumps(settings))
        assert "cannot have the id" in self.message(folder)

    def test_a_broken_tokenizer_json(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{")
        assert self.message(folder) == "tokenizer.json: not a tokenizer that can be read"


def test_no_torch_is_imported() -> None:
    code = "import sys, voice_clone.families.qwen3_tts.prompt; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
