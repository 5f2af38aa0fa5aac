"""The text vocabulary of random checkpoints: a small byte-level BPE, trained on a few sentences."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

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
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = byte_alphabet()
    size = len(alphabet) + merges
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, **options)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def merges_of(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Its merges, in order."""
    return [(first, second) for first, second in json.loads(tokenizer.to_str())["model"]["merges"]]


def byte_alphabet() -> list[str]:
    """The letters that stand for the 256 bytes, in the order of their ids (GPT-2, Radford et al. 2019).

    Printable bytes of Latin-1 stand for themselves and come first; the others are numbered from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(0x100 + index) for index in range(256 - len(printable))]
