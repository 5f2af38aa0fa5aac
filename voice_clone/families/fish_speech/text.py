"""Text to token ids, part by part as the official code encodes a conversation. Needs no torch.

Source: fish-speech, commit 3dd1f85, `conversation.py`, `content_sequence.py` and `inference.py`. Each part is encoded
by itself, so no token spans two parts. A reference's frames stand between `reference_ids` and `text_ids`.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from voice_clone.checkpoint_folder import read_tokenizer
from voice_clone.errors import CheckpointError
from voice_clone.families.fish_speech.config import FishSpeechConfig, load_config
from voice_clone.stages.text import Ids, check_no_control_token

TOKENIZER_FILE = "tokenizer.json"

END = "<|im_end|>"
BEFORE_TRANSCRIPT = (
    "<|im_start|>system\n",
    "convert the provided text to speech reference to the following:\n\nText:\n",
)
BEHIND_TRANSCRIPT = ("\n\nSpeech:\n",)
BEFORE_TEXT = (f"{END}\n", "<|im_start|>user\n")
BEHIND_TEXT = (f"{END}\n", "<|im_start|>assistant\n<|voice|>")

_SPEAKER = re.compile(r"<\|speaker:[0-9]+\|>")
_TURN = re.compile(rf"(?={_SPEAKER.pattern})")
_ALLOWED = re.compile(rf"{_SPEAKER.pattern}|<\|phoneme_(start|end)\|>")  # added tokens that a text may hold


class Tokenizer:
    """The tokenizer of a checkpoint folder.

    Attributes:
        end_token: the token that ends speech.
        around_text: how many of `text_ids` are not the text's own.

    Raises:
        CheckpointError: the file is missing or malformed, or its tokens are not those that the configuration names.
    """

    def __init__(self, folder: Path, config: FishSpeechConfig) -> None:
        self._tokenizer = read_tokenizer(folder, TOKENIZER_FILE)
        added = self._tokenizer.get_added_tokens_decoder()
        self._control = {
            index: token.content for index, token in added.items() if not _ALLOWED.fullmatch(token.content)
        }
        named = {f"<|semantic:{code}|>": config.semantic_start_token_id + code for code in range(config.semantic_codes)}
        if config.eos_token_id >= 0:
            named[END] = config.eos_token_id
        for token, index in named.items():
            if self._tokenizer.token_to_id(token) != index:
                raise CheckpointError(f"{TOKENIZER_FILE}: {token} does not have the id {index} of config.json")
        for token in (END, "<|im_start|>", "<|voice|>"):
            if self._tokenizer.token_to_id(token) not in self._control:
                raise CheckpointError(f"{TOKENIZER_FILE}: lacks the token {token}")
        if (tokens := max(self._tokenizer.get_vocab().values()) + 1) > config.text_config.vocab_size:
            raise CheckpointError(
                f"{TOKENIZER_FILE}: has {tokens} tokens, but text_config.vocab_size is {config.text_config.vocab_size}"
            )
        self.end_token: int = self._tokenizer.token_to_id(END)
        self.around_text = len(self.text_ids(""))

    def reference_ids(self, transcript: str) -> Ids:
        """What stands before the frames of a reference clip: int32 [n].

        Raises:
            InvalidArgument: `transcript` holds a control token of the model.
        """
        tagged = transcript if _SPEAKER.search(transcript) else f"<|speaker:0|>{transcript}"
        return self._ids("reference_text", BEFORE_TRANSCRIPT, tagged, BEHIND_TRANSCRIPT)

    def text_ids(self, text: str) -> Ids:
        """What stands behind the frames: int32 [n]. In a text with speakers each turn is a line of its own.

        Raises:
            InvalidArgument: `text` holds a control token of the model.
        """
        if _SPEAKER.search(text):
            text = "\n".join(turn for part in _TURN.split(text) if (turn := part.strip()))
        return self._ids("text", BEFORE_TEXT, text, BEHIND_TEXT)

    def _ids(self, name: str, before: tuple[str, ...], text: str, behind: tuple[str, ...]) -> Ids:
        inner = self._encode(text)
        check_no_control_token(name, inner, self._control)
        parts = [*map(self._encode, before), inner, *map(self._encode, behind)]
        return np.array([index for part in parts for index in part], np.int32)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def read(folder: Path) -> tuple[FishSpeechConfig, Tokenizer]:
    """Configuration and tokenizer of the checkpoint in `folder`.

    Raises:
        CheckpointError: it cannot be served.
    """
    config = load_config(folder)
    return config, Tokenizer(folder, config)
