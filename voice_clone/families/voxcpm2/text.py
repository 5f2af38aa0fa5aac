"""Text to token ids: the BPE of `tokenizer.json`, but each Chinese character is a token of its own. Needs no torch.

Source: voxcpm 2.0.3, `mask_multichar_chinese_tokens` and `VoxCPM.generate`.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from voice_clone.checkpoint_folder import read_tokenizer
from voice_clone.errors import CheckpointError
from voice_clone.families.voxcpm2.config import CONFIG_FILE, VoxCPM2Config, load_config
from voice_clone.stages.text import Ids, check_no_control_token

TOKENIZER_FILE = "tokenizer.json"

_SPACE = "\u2581"  # stands for a blank in a token
_CHINESE = re.compile("[\u4e00-\u9fff]{2,}")
_PARENTHESES = str.maketrans("", "", "()\uff08\uff09")


def target(text: str, style: str | None = None) -> str:
    """What is to be said, as the model reads it: white space is one blank, and a style stands before the text.

    Args:
        style: how to speak, in words; parentheses in it are dropped, because they are its marks.
    """
    if style is not None:
        text = f"({style.translate(_PARENTHESES).strip()}){text}"
    return re.sub(r"\s+", " ", text)


class Tokenizer:
    """The tokenizer of a checkpoint folder.

    Raises:
        CheckpointError: the file is missing or malformed, or has more tokens than the talker.
    """

    def __init__(self, folder: Path, config: VoxCPM2Config) -> None:
        self._tokenizer = read_tokenizer(folder, TOKENIZER_FILE)
        vocabulary = self._tokenizer.get_vocab()
        size = config.lm_config.vocab_size
        if (tokens := max(vocabulary.values(), default=-1) + 1) > size:
            raise CheckpointError(
                f"{TOKENIZER_FILE}: has {tokens} tokens, but lm_config.vocab_size in {CONFIG_FILE} is {size}"
            )
        self._control = {index: token.content for index, token in self._tokenizer.get_added_tokens_decoder().items()}
        self._split = self._characters(vocabulary)

    def text_ids(self, text: str) -> Ids:
        """Those of a text: int32 [n].

        Raises:
            InvalidArgument: `text` holds a control token of the model.
        """
        return self._ids("text", text)

    def reference_ids(self, transcript: str) -> Ids:
        """Those of a clip's transcript: int32 [n].

        Raises:
            InvalidArgument: `transcript` holds a control token of the model.
        """
        return self._ids("reference_text", transcript)

    def joined_ids(self, transcript: str, text: str) -> Ids:
        """Those of a text that goes on behind a transcript, as one string: a token may span both. int32 [n].

        Raises:
            InvalidArgument: the two hold a control token of the model.
        """
        return self._ids("text", transcript + text)

    def _ids(self, name: str, text: str) -> Ids:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        check_no_control_token(name, ids, self._control)
        return np.array([part for index in ids for part in self._split.get(index, (index,))], np.int32)

    def _characters(self, vocabulary: dict[str, int]) -> dict[int, tuple[int, ...]]:
        """Of each token of several Chinese characters, theirs; a blank at its side is lost, as in training."""
        unknown = vocabulary.get(getattr(self._tokenizer.model, "unk_token", None) or "")
        found = {}
        for token, index in vocabulary.items():
            characters = token.replace(_SPACE, "")
            if characters in vocabulary and _CHINESE.fullmatch(characters):
                ids = [vocabulary.get(each, unknown) for each in characters]
                if None in ids:
                    raise CheckpointError(f"{TOKENIZER_FILE}: lacks a character of the token {token!r}")
                found[index] = tuple(each for each in ids if each is not None)
        return found


def read(folder: Path) -> tuple[VoxCPM2Config, Tokenizer]:
    """Configuration and tokenizer of the checkpoint in `folder`.

    Raises:
        CheckpointError: it cannot be served.
    """
    config = load_config(folder)
    return config, Tokenizer(folder, config)
