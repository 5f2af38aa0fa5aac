"""The tokenizer of a random checkpoint: a small byte-level BPE in tekken.json, special tokens as released."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from tools.families.byte_level_bpe import byte_letters, train_merges
from tools.families.voxtral.checkpoint_config import SPECIAL_TOKENS
from tools.families.weight_files import write_json

# Special tokens by their ids as released, so that mistral-common reads the file, too; all others are fillers.
_FIRST = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
NAMED = {
    **dict(enumerate(_FIRST)),
    24: "[AUDIO]",
    25: "[BEGIN_AUDIO]",
    32: "[ARGS]",
    33: "[CALL_ID]",
    34: "[TRANSCRIBE]",
    35: "[REPEAT_AUDIO_TEXT]",
    36: "[NEXT_AUDIO_TEXT]",
}
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tokenizer(folder: Path, vocabulary: int | None, voices: dict[str, int]) -> int:
    """Write tekken.json; returns the number of tokens, special ones included.

    Args:
        folder: exists.
        vocabulary: number of tokens; those that the merges leave over are filled with tokens that no text makes. None:
            no filling.
        voices: the rows of the preset voices by name.
    """
    letters = {letter: byte for byte, letter in byte_letters().items()}
    tokens = [bytes([byte]) for byte in range(256)]
    for first, second in train_merges():
        token = bytes(letters[letter] for letter in first + second)
        if token not in tokens:
            tokens.append(token)
    size = vocabulary or SPECIAL_TOKENS + len(tokens)
    tokens += [b"\xff\xfe%d" % index for index in range(len(tokens), size - SPECIAL_TOKENS)]
    write_json(folder / "tekken.json", tekken(tokens, size, voices))
    return size


def tekken(tokens: list[bytes], size: int, voices: dict[str, int]) -> dict[str, Any]:
    """The content of tekken.json. `size`: of the vocabulary, special tokens included."""
    special = [NAMED.get(rank, f"<SPECIAL_{rank}>") for rank in range(SPECIAL_TOKENS)]
    return {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": size,
            "default_num_special_tokens": SPECIAL_TOKENS,
            "version": "v13",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": _text(token)}
            for rank, token in enumerate(tokens)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(special)
        ],
        "audio": {
            "sampling_rate": 24000,
            "frame_rate": 12.5,
            "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
            "voice_num_audio_tokens": voices,
        },
    }


def _text(token: bytes) -> str | None:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None
