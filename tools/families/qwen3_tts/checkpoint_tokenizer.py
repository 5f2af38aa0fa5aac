"""The tokenizer of a random checkpoint: a small byte-level BPE in the official files, special tokens as released."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tools.families.byte_level_bpe import byte_alphabet, train_merges

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
    merges = train_merges() if merges is None else merges
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
