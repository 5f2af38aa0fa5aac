"""Units of a text as the network reads them. Needs no torch.

The official code has units of other sizes for two languages: words of a Japanese and a Korean analyser, which need
packages of their own. Here a unit of Japanese is a character, and one of Korean is what white space separates.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import CheckpointError
from voice_clone.qwen3_aligner.config import AUDIO_END, AUDIO_PAD, AUDIO_START, CONFIG_FILE, TIMESTAMP, AlignerConfig
from voice_clone.stages.text import SETTINGS_FILE, PlainTokenizer, qwen_vocabulary

Ids = NDArray[np.int64]


def kept_of(text: str) -> str:
    """The letters, digits and straight apostrophes of a unit, which are all that the network reads of it."""
    return "".join(each for each in text if each == "'" or unicodedata.category(each)[0] in "LN")


class AlignerTokenizer(PlainTokenizer):
    """The tokenizer of the checkpoint in `folder`.

    Raises:
        CheckpointError: a file is missing or malformed, or its tokens are not those of the configuration.
    """

    def __init__(self, folder: Path, config: AlignerConfig) -> None:
        where, vocabulary = f"vocab_size in {CONFIG_FILE}", qwen_vocabulary(folder)
        super().__init__(folder, SETTINGS_FILE, config.text.vocab_size, where, vocabulary=vocabulary)
        for name, token in config.tokens.items():
            if token not in vocabulary.added or vocabulary.added[token].content != name:
                raise CheckpointError(f"{SETTINGS_FILE}: the token {name} must have the id {token} of {CONFIG_FILE}")
        self._tokens = config.tokens

    def prompt(self, units: Sequence[str], rows: int) -> tuple[Ids, Ids]:
        """The prompt: the sound, then each unit with two marks, for its start and its end.

        Args:
            units: of `kept_of`; a unit is tokenised as if it stood alone.
            rows: of the sound.

        Returns:
            The ids, and the places of the marks among them.

        Raises:
            InvalidArgument: a unit is a control token of the model.
        """
        start, pad, end, mark = (self._tokens[name] for name in (AUDIO_START, AUDIO_PAD, AUDIO_END, TIMESTAMP))
        ids = [start, *[pad] * rows, end]
        for unit in units:
            ids += [*self._ids_of("text", unit), mark, mark]
        prompt = np.array(ids, np.int64)
        return prompt, np.flatnonzero(prompt == mark)
