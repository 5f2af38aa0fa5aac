"""The tokenizer of the demo's checkpoint: few merges, none long, so that tokens come about as fast as their sounds."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from tools.families.byte_level_bpe import byte_alphabet

MERGES = 500
LONGEST = 4  # characters, the space before a word among them
_ROLE = "assistant"  # must be one token: the chat template needs it
_SPLIT = r"\p{N}| ?\p{L}+|'[a-z]+| ?[^\s\p{L}\p{N}]+|\s+"


def train_merges(texts: list[str]) -> list[tuple[str, str]]:
    """Byte-pair merges learned from texts; the last ones make the role's name."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = byte_alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, max_token_length=LONGEST, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    parts = tokenizer.encode(_ROLE).tokens
    merges = [(first, second) for first, second in json.loads(tokenizer.to_str())["model"]["merges"]]
    while len(parts) > 1:
        merges.append((parts[0], parts[1]))
        parts = ["".join(parts[:2]), *parts[2:]]
    return merges


def token_lengths(folder: Path) -> dict[int, int]:
    """How many bytes each token of the vocabulary in `folder` stands for."""
    vocabulary: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    return {index: len(token) for token, index in vocabulary.items()}
