"""The tokenizer of a random checkpoint: a small byte-level BPE in the official files, special tokens as released."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

ASSISTANT_ID = 77091  # of the released vocabulary

# The tokens after the text vocabulary, in the order of their ids (151643 to 151675 as released); the words without
# bars of the second tuple are no control tokens.
SPECIAL_TOKENS = (
    *(f"<|{name}|>" for name in ("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end")),
    *(f"<|{name}|>" for name in ("box_start", "box_end", "quad_start", "quad_end", "vision_start", "vision_end")),
    *(f"<|{name}|>" for name in ("vision_pad", "image_pad", "video_pad")),
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    *("<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"),
    "<|audio_pad|>",
)
_PLAIN = slice(SPECIAL_TOKENS.index("<tool_call>"), SPECIAL_TOKENS.index("</think>") + 1)

_SPLIT = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"  # coarser than the tokenizer's own: merges must lie within a word
_MERGES = 700
_CORPUS = """
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


def write_tokenizer(
    folder: Path, base_vocabulary: int | None, merges: Sequence[tuple[str, str]] | None = None
) -> dict[str, int]:
    """Write vocab.json, merges.txt and tokenizer_config.json.

    Args:
        folder: exists.
        base_vocabulary: number of text tokens; those that the merges leave over are filled with tokens that no text
            makes. None: no filling.
        merges: None: those learned from a few sentences in many languages.

    Returns:
        The ids of the special tokens and of `assistant`.
    """
    merges = _train() if merges is None else merges
    tokens = [*byte_alphabet(), *("".join(pair) for pair in merges)]
    if base_vocabulary is not None:
        tokens += [f"[unused {index}]" for index in range(len(tokens), base_vocabulary)]
        old = tokens.index("assistant")
        tokens[old], tokens[ASSISTANT_ID] = tokens[ASSISTANT_ID], tokens[old]
    special = {token: len(tokens) + index for index, token in enumerate(SPECIAL_TOKENS)}
    plain = SPECIAL_TOKENS[_PLAIN]
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    settings = {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(index): {"content": token, **flags, "special": token not in plain} for token, index in special.items()
        },
        "additional_special_tokens": [token for token in SPECIAL_TOKENS[1:] if token not in plain],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    vocabulary = {token: index for index, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return {**special, "assistant": vocabulary["assistant"]}


def _train() -> list[tuple[str, str]]:
    """The merges; those of `assistant` are among them, because the chat template needs it in one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = byte_alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + _MERGES, min_frequency=1, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([_CORPUS, "assistant\n" * 50, "\n\n\n"], trainer)
    return [(first, second) for first, second in json.loads(tokenizer.to_str())["model"]["merges"]]


def byte_alphabet() -> list[str]:
    """The letters that stand for the 256 bytes, in the order of their ids (GPT-2, Radford et al. 2019).

    Printable bytes of Latin-1 stand for themselves and come first; the others are numbered from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(0x100 + index) for index in range(256 - len(printable))]
