"""The tokenizer of the demo's checkpoint: few merges, none long, so that tokens come about as fast as their sounds."""

from __future__ import annotations

import json
from pathlib import Path

from tools.families.byte_level_bpe import merges_of, train

MERGES = 500
LONGEST = 4  # characters, the space before a word among them
_ROLE = "assistant"  # must be one token: the chat template needs it
_SPLIT = r"\p{N}| ?\p{L}+|'[a-z]+| ?[^\s\p{L}\p{N}]+|\s+"


def train_merges(texts: list[str]) -> list[tuple[str, str]]:
    """Byte-pair merges learned from texts; the last ones make the role's name."""
    tokenizer = train(texts, _SPLIT, MERGES, max_token_length=LONGEST)
    parts, merges = tokenizer.encode(_ROLE).tokens, merges_of(tokenizer)
    while len(parts) > 1:
        merges.append((parts[0], parts[1]))
        parts = ["".join(parts[:2]), *parts[2:]]
    return merges


def token_lengths(folder: Path) -> dict[int, int]:
    """How many bytes each token of the vocabulary in `folder` stands for."""
    vocabulary: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    return {index: len(token) for token, index in vocabulary.items()}
