"""The text vocabulary of random checkpoints: a small byte-level BPE, trained on a few sentences, as Qwen has it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from voice_clone.stages.byte_pairs import QWEN2_SPLIT

_SPLIT = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"  # coarser than the tokenizer's own: merges must lie within a word
_MERGES = 700
CORPUS = """
The voice of a friend is known before the first word ends. We read the same short story aloud, once in the morning
and once at night, and asked the listeners which of the two they liked better. Numbers such as 12, 305 or 1998 are
spoken as words; so are dates, prices and the time of the day. It's late, we're tired, but they'll sing again.
Die Stimme eines Freundes erkennt man vor dem ersten Satz. Wir lesen die gleiche Geschichte am Morgen und am Abend.
La voix d'un ami se reconnait avant la fin du premier mot. Nous lisons la meme histoire le matin et le soir.
La voz de un amigo se conoce antes de la primera palabra. Leemos la misma historia por la mañana y por la noche.
La voce di un amico si riconosce prima della parola. Leggiamo la stessa storia al mattino e alla sera.
A voz de um amigo se reconhece antes da primeira palavra. Lemos a mesma história de manhã e de noite.
Голос друга узнают раньше первого слова. Мы читаем одну и ту же историю утром и вечером.
朋友的声音在第一句话之前就能听出来。我们早上读一遍故事,晚上再读一遍。
友だちの声は最初の言葉の前にわかります。朝と夜に同じ話を読みます。
친구의 목소리는 첫 단어 전에 알 수 있습니다. 아침과 저녁에 같은 이야기를 읽습니다.
"""

ROLES = "assistant\n" * 50

QWEN_ADDED = (
    *(f"<|{name}|>" for name in ("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end")),
    *(f"<|{name}|>" for name in ("box_start", "box_end", "quad_start", "quad_end", "vision_start", "vision_end")),
    *(f"<|{name}|>" for name in ("vision_pad", "image_pad", "video_pad")),
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
"""The tokens behind the vocabulary of Qwen3, in the order of their ids, 151643 to 151668 as released."""


def train_merges() -> list[tuple[str, str]]:
    """The merges; those of `assistant` are among them, because chat templates need it in one token."""
    tokenizer = train([CORPUS, ROLES, "\n\n\n"], _SPLIT, _MERGES, min_frequency=1)
    return merges_of(tokenizer)


def train(texts: Iterable[str], split: str, merges: int, **options: Any) -> Tokenizer:
    """A tokenizer of bytes and `merges` merges, none of which crosses a match of the pattern `split`.

    Args:
        options: further ones of `tokenizers.trainers.BpeTrainer`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _cut(split)
    alphabet = list(byte_letters().values())
    size = len(alphabet) + merges
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, **options)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def vocabulary_of(merges: Sequence[tuple[str, str]], size: int | None) -> list[str]:
    """The vocabulary of bytes and merges.

    Args:
        size: tokens; those that the merges leave over are tokens that no text makes. None: no filling.
    """
    tokens = [*byte_letters().values(), *("".join(pair) for pair in merges)]
    if size is not None:
        tokens += [f"[unused {index}]" for index in range(len(tokens), size)]
    return tokens


def qwen_tokenizer(tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """Qwen's kind of tokenizer, without added tokens."""
    tokenizer = Tokenizer(models.BPE(vocab=_ids(tokens), merges=list(merges)))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _cut(QWEN2_SPLIT)
    return tokenizer


def write_vocabulary(folder: Path, tokens: Sequence[str], merges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Write Qwen2's vocab.json and merges.txt into the existing `folder`; the ids of the tokens."""
    ids = _ids(tokens)
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    return ids


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def _cut(split: str) -> pre_tokenizers.PreTokenizer:
    """Into bytes, in pieces that the pattern cuts."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def merges_of(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Its merges, in order."""
    return [(first, second) for first, second in json.loads(tokenizer.to_str())["model"]["merges"]]


def byte_letters() -> dict[int, str]:
    """The letters that stand for the 256 bytes, in the order of their ids (GPT-2, Radford et al. 2019).

    Printable bytes of Latin-1 stand for themselves and come first; the others are numbered from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + index) for index, byte in enumerate(others)}
