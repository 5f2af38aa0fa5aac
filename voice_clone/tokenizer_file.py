"""tokenizer.json, which holds a whole tokenizer."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from voice_clone.errors import CheckpointError


def read_tokenizer(file: Path) -> tokenizers.Tokenizer:
    """The tokenizer in a file that is there; it neither cuts nor pads.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception:  # the library raises plain Exception
        raise CheckpointError(f"{file.name}: not a tokenizer that can be read") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    keep_no_words(tokenizer)
    return tokenizer


def keep_no_words(tokenizer: tokenizers.Tokenizer) -> None:
    """Make a byte-level BPE tokenizer keep none of the words that it reads, which are those of transcripts, too.

    Else it keeps the last 10,000 different ones, of deleted voices as well. They save no measurable time.
    """
    if isinstance(tokenizer.model, tokenizers.models.BPE):
        tokenizer.model._resize_cache(0)
