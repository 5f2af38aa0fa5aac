"""A byte-level BPE over kept tables: its ids are those of the library, which a later start does not read."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import NoReturn

import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from tools.families.byte_level_bpe import merges_of, train
from tools.families.qwen3_tts.checkpoint_config import write_tokenizer
from voice_clone.families.qwen3_tts.prompt import Tokenizer
from voice_clone.native.cache_folder import VARIABLE
from voice_clone.stages.byte_pairs import LETTERS, LONG, QWEN2_SPLIT, Vocabulary, open_vocabulary, tables_of
from voice_clone.stages.text import qwen2_tokenizer

ENGLISH = "The friend's voice was heard again, and again; it's 12 o'clock. We'll see!  She SAID: don't wait.\n"
PARTS = (
    *(
        "the",
        " friend",
        "'s",
        "'LL",
        " voice",
        "aaaaaaa",
        "12",
        "0",
        " ",
        "   ",
        "\n",
        "\r\n\n",
        "\t",
        "...",
        "!?",
        "-",
    ),
    *(
        "é",
        "e\u0301",
        "\u0301",
        "ﬁ",
        "İ",
        "ſ",
        "한",
        "\u1112\u1161",
        "か\u3099",
        "朋友",
        "的声音",
        "🙂",
        "\u200d",
        "\x00",
    ),
    *("<|im_start|>", "<|im_end|>", "<|im_", "|>", "<think>", "<thin", "\U0010ffff", "\ufeff", "\u0378", "Ġ"),
)


def text_of(rng: random.Random) -> str:
    """A text with whatever a tokenizer may stumble over."""
    if rng.random() < 0.3:
        return "".join(map(chr, rng.choices(range(0x80), k=12)))
    if rng.random() < 0.3:
        return "".join(chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(9))
    return "".join(rng.choice(PARTS) for _ in range(rng.randrange(25)))


def library(*_: object) -> NoReturn:
    raise AssertionError("the library's vocabulary is read")


def small(folder: Path) -> tokenizers.Tokenizer:
    write_tokenizer(folder, None)
    return qwen2_tokenizer(folder, "vocab.json", "merges.txt")


@pytest.mark.parametrize("seed", range(6))
def test_ids_are_those_of_the_library(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    texts = [ENGLISH * 3, "assistant\n" * 50, *("".join(rng.choice("abc漢字") for _ in range(30)) for _ in range(30))]
    write_tokenizer(tmp_path, None, merges_of(train(texts, QWEN2_SPLIT, 400 + 300 * seed, min_frequency=1)))
    expected = Tokenizer(tmp_path).vocabulary.library
    found = Vocabulary(library, tables_of(expected))
    assert found.size == expected.get_vocab_size()
    assert {index: token.content for index, token in found.added.items()} == {
        index: token.content for index, token in expected.get_added_tokens_decoder().items()
    }
    for text in [ENGLISH, "", "a" * LONG, "abc" * 300, *(text_of(rng) for _ in range(500))]:
        assert found.ids(text) == expected.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("ends", range(2))
def test_ascii_is_split_as_by_the_library(tmp_path: Path, ends: int) -> None:
    """All short texts of these characters, which have what the pattern tells apart, and all of any two."""
    made = small(tmp_path)
    found = Vocabulary(library, tables_of(made))
    some = "aT9 \t\r\n'.sL"
    texts = map("".join, (*product(some, repeat=4), *product(map(chr, range(0x80)), repeat=2)))
    for text in texts:
        text = ("ab" + text, text + " l'S")[ends]
        assert found.ids(text) == made.encode(text).ids, text


def test_the_letters_of_bytes_are_those_of_the_library() -> None:
    assert sorted(LETTERS) == sorted(pre_tokenizers.ByteLevel.alphabet())
    by_library = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "".join(map(chr, range(0x20, 0x3000)))
    [(mapped, _)] = by_library.pre_tokenize_str(text)
    assert mapped == "".join(LETTERS[byte] for byte in text.encode())


def test_merges_in_any_order(tmp_path: Path) -> None:
    """A token that several pairs make, each with a rank of its own."""
    made = small(tmp_path)
    rng, letters = random.Random(1), "abcd"
    words = [a + b for a in letters for b in letters]
    words += [a + b for a in words for b in letters]
    pairs = [(word[:place], word[place:]) for word in words for place in range(1, len(word))]
    rng.shuffle(pairs)
    vocabulary = {letter: index for index, letter in enumerate([*pre_tokenizers.ByteLevel.alphabet(), *words])}
    made.model = models.BPE(vocab=vocabulary, merges=pairs)
    found = Vocabulary(library, tables_of(made))
    for _ in range(500):
        text = "".join(rng.choice(letters) for _ in range(rng.randrange(1, 60)))
        assert found.ids(text) == made.encode(text).ids, text


def test_a_later_start_does_not_read_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "kept"))
    write_tokenizer(tmp_path, 151643)
    first = Tokenizer(tmp_path)
    monkeypatch.setattr("voice_clone.stages.text.qwen_tokenizer", library)
    second = Tokenizer(tmp_path)
    assert second.role_ids.tolist() == first.role_ids.tolist() == [151644, 77091, 198]
    for text in (ENGLISH, "朋友 <think> 12"):
        assert second.text_ids(text).tolist() == first.text_ids(text).tolist()
    with pytest.raises(AssertionError, match="is read"):
        second.text_ids(ENGLISH * LONG)
    (tmp_path / "merges.txt").touch()
    with pytest.raises(AssertionError, match="is read"):
        Tokenizer(tmp_path)


def test_a_later_start_does_not_import_the_library_for_ascii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "kept"))
    write_tokenizer(tmp_path, 151643)
    expected = Tokenizer(tmp_path).text_ids(ENGLISH).tolist()
    code = (
        "import sys; from pathlib import Path; from voice_clone.families.qwen3_tts.prompt import Tokenizer\n"
        "ids = Tokenizer(Path(sys.argv[1])).text_ids(sys.argv[2]).tolist()\n"
        "assert 'tokenizers' not in sys.modules; print(ids)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), ENGLISH], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == str(expected)


def test_a_long_text_has_the_ids_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "kept"))
    write_tokenizer(tmp_path, 151643)
    names = "vocab.json", "merges.txt"
    found = [open_vocabulary(tmp_path, names, lambda: qwen2_tokenizer(tmp_path, *names)) for _ in range(2)]
    text = ENGLISH * 30
    assert len(text) > LONG
    assert found[0].ids(text) == found[1].ids(text) == found[1].library.encode(text).ids


def test_other_kinds_have_no_tables(tmp_path: Path) -> None:
    plain = small(tmp_path)
    assert tables_of(plain)
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a"))
    split = small(tmp_path)
    split.pre_tokenizer = pre_tokenizers.Whitespace()
    spaced = small(tmp_path)
    spaced.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    stripped = small(tmp_path)
    stripped.add_tokens([AddedToken("<x>", lstrip=True, normalized=False)])
    normal = small(tmp_path)
    normal.add_tokens([AddedToken("<x>", normalized=True)])
    for other in (words, split, spaced, stripped, normal):
        assert not tables_of(other)
        vocabulary = Vocabulary(lambda other=other: other)  # type: ignore[misc]
        assert vocabulary.ids("a <x> a") == other.encode("a <x> a").ids


def test_another_composition(tmp_path: Path) -> None:
    made = small(tmp_path)
    for normalizer in (None, normalizers.NFKC(), normalizers.Lowercase()):
        made.normalizer = normalizer
        assert Vocabulary(library, tables_of(made)).ids("ﬁ É") == made.encode("ﬁ É").ids
