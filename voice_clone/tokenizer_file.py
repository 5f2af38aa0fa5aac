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
    return tokenizer
