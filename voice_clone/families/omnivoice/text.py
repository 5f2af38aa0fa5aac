"""Text to token ids: the checkpoint's `tokenizer.json`, and how parts of a prompt are wrapped. Needs no torch.

Source: omnivoice 0.2.1, `models/omnivoice.py` (`_prepare_inference_inputs`, `_combine_text`,
`_tokenize_with_nonverbal_tags`).
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from voice_clone.checkpoint_folder import read_tokenizer
from voice_clone.errors import CheckpointError
from voice_clone.families.omnivoice.config import CONFIG_FILE, TOKENIZER_FILE, TalkerConfig, load_config
from voice_clone.stages.text import Ids, check_no_control_token

DENOISE = "<|denoise|>"
LANGUAGE = ("<|lang_start|>", "<|lang_end|>")
INSTRUCTION = ("<|instruct_start|>", "<|instruct_end|>")
TEXT = ("<|text_start|>", "<|text_end|>")
CONTROL = (DENOISE, *LANGUAGE, *INSTRUCTION, *TEXT)

_QUESTIONS, _SURPRISES = ("en", "ah", "oh", "ei", "yi"), ("ah", "oh", "wa", "yo")
SOUNDS = (
    *("laughter", "sigh", "confirmation-en", "dissatisfaction-hnn"),
    *(f"question-{each}" for each in _QUESTIONS),
    *(f"surprise-{each}" for each in _SURPRISES),
)
"""Sounds that a text may ask for, each in square brackets."""
_SOUND = re.compile(rf"(\[(?:{'|'.join(SOUNDS)})\])")
_BESIDE_CHINESE = re.compile(r"(?<=[\u4e00-\u9fff])\s+|\s+(?=[\u4e00-\u9fff])")
_WIDE_BRACKETS = str.maketrans("（）", "()")


def joined(transcript: str | None, text: str) -> str:
    """What the model reads: the transcript of the clip and the text behind it, in one line."""
    whole = f"{transcript.strip()} {text.strip()}" if transcript else text.strip()
    whole = re.sub(r"[\r\n]+", "", whole).translate(_WIDE_BRACKETS)
    return _BESIDE_CHINESE.sub("", re.sub(r"[ \t]+", " ", whole))


class Tokenizer:
    """The tokenizer of a checkpoint folder.

    Raises:
        CheckpointError: the file is missing or malformed, lacks a control token, or has more tokens than the talker.
    """

    def __init__(self, folder: Path, config: TalkerConfig) -> None:
        self._tokenizer = read_tokenizer(folder, TOKENIZER_FILE)
        for token in CONTROL:
            if len(self._encode(token)) != 1:
                raise CheckpointError(f"{TOKENIZER_FILE}: {token} is no token of it")
        if (most := max(self._tokenizer.get_vocab().values())) >= config.vocab_size:
            raise CheckpointError(
                f"{TOKENIZER_FILE}: has the id {most}; {CONFIG_FILE} allows ids below {config.vocab_size}"
            )
        added = self._tokenizer.get_added_tokens_decoder()
        self._control = {number: token.content for number, token in added.items() if token.content[:2] == "<|"}

    def check(self, name: str, ids: Ids) -> None:
        """Check the tokens of a text of a request; `name` is for the error.

        Raises:
            InvalidArgument: it holds a control token of the model.
        """
        check_no_control_token(name, ids.tolist(), self._control)

    def ids(self, text: str) -> Ids:
        """Those of a text by itself: int32 [n]."""
        return np.array(self._encode(text), np.int32)

    def style_ids(self, denoise: bool, language: str | None, instruction: str | None) -> Ids:
        """What stands before the text: int32 [n].

        Args:
            denoise: speak as if the clip had no noise.
            language: its id; None: none is named.
            instruction: as of `instruct.instruction`.
        """
        words = (language or "None").join(LANGUAGE) + (instruction or "None").join(INSTRUCTION)
        return self.ids((DENOISE if denoise else "") + words)

    def text_ids(self, transcript: str | None, text: str) -> Ids:
        """Those of the text, with the transcript of the clip before it: int32 [n]. A sound is encoded by itself."""
        parts = _SOUND.split(joined(transcript, text).join(TEXT))
        return np.array([each for part in parts if part for each in self._encode(part)], np.int32)

    def _encode(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found


def read(folder: Path) -> tuple[TalkerConfig, Tokenizer]:
    """Configuration and tokenizer of the checkpoint in `folder`.

    Raises:
        CheckpointError: it cannot be served.
    """
    config = load_config(folder)
    return config, Tokenizer(folder, config)
