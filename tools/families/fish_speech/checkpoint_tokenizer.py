"""The tokenizer of a random checkpoint: a small byte-level BPE in tokenizer.json, special tokens as released."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tools.families.byte_level_bpe import byte_alphabet, train_merges
from tools.families.fish_speech.checkpoint_config import SEMANTIC_CODES

# The tokens after the text vocabulary, in the order of their ids (151643 to 155773 as released).
SPECIAL_TOKENS = (
    *(f"<|{name}|>" for name in ("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end")),
    *(f"<|{name}|>" for name in ("box_start", "box_end", "quad_start", "quad_end", "vision_start", "vision_end")),
    *(f"<|{name}|>" for name in ("vision_pad", "image_pad", "video_pad")),
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    *(f"<|{name}|>" for name in ("pad", "phoneme_start", "phoneme_end", "text", "voice", "interleave")),
    *(f"<|{name}|>" for name in ("audio_start", "audio_end", "audio_pad")),
    *(f"<|semantic:{code}|>" for code in range(SEMANTIC_CODES)),
)

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tokenizer(folder: Path, text_tokens: int | None) -> dict[str, int]:
    """Write tokenizer.json.

    Args:
        folder: exists.
        text_tokens: number of text tokens; those that the merges leave over are filled with tokens that no text makes.
            None: no filling.

    Returns:
        The ids of the special tokens.
    """
    merges = train_merges()
    tokens = [*byte_alphabet(), *("".join(pair) for pair in merges)]
    if text_tokens is not None:
        tokens += [f"[unused {index}]" for index in range(len(tokens), text_tokens)]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    return {token: len(tokens) + index for index, token in enumerate(SPECIAL_TOKENS)}
