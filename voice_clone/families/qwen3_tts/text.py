"""Text to token ids, as the official processor makes them: Qwen2's byte-level BPE. Needs no torch.

Sources: transformers 4.57.3 `tokenization_qwen2_fast.py` and `Qwen2Converter`; the templates are those of qwen-tts
0.1.1 (`Qwen3TTSModel`, `_build_assistant_text`, `_build_ref_text`, `_build_instruct_text`).

The splitting pattern is Qwen2's, with which the models were trained. transformers 4.57.3 uses Mistral's pattern for any
large tokenizer in a local folder (transformers #42591), but Qwen2's if the checkpoint is loaded by its name on the hub.
Here it is always Qwen2's.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken

from voice_clone.appended_text import AppendedTokens, Tail
from voice_clone.checkpoint_folder import read_json, read_tokenizer
from voice_clone.errors import CheckpointError
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, load_config
from voice_clone.families.qwen3_tts.prompt import ROLE_LENGTH
from voice_clone.stages.text import QWEN2_SPLIT, Ids, check_no_control_token, qwen2_tokenizer

TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILE = "vocab.json"
MERGES_FILE = "merges.txt"
SETTINGS_FILE = "tokenizer_config.json"

ROLE = "<|im_start|>assistant\n"
USER = "<|im_start|>user\n"
END = "<|im_end|>\n"


class Tokenizer:
    """The tokenizer of a checkpoint folder: tokenizer.json, or vocab.json and merges.txt.

    Attributes:
        role_ids: int32 [3], the ids of `<|im_start|>assistant\\n`.

    Raises:
        CheckpointError: a file is missing or malformed, or lacks the tokens of the chat template.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = _load(folder)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {index: token.content for index, token in added.items() if token.special}
        role, end = self._encode(ROLE), self._encode(END)
        if len(role) != ROLE_LENGTH or len(end) != 2 or role[0] not in self._special or end[0] not in self._special:
            raise CheckpointError(f"{SETTINGS_FILE}: {ROLE!r} and {END!r} are not the tokens that the model knows")
        self.role_ids: Ids = np.array(role, np.int32)
        self._end = end

    def text_ids(self, text: str) -> Ids:
        """The ids of `text` in the prompt of a synthesis: int32 [n].

        Raises:
            InvalidArgument: `text` holds a control token of the model.
        """
        return self._ids(text, END + ROLE, [*self._end, *self.role_ids.tolist()])

    def reference_ids(self, text: str) -> Ids:
        """The ids of the transcript of a reference clip: int32 [n].

        Raises:
            InvalidArgument: `text` holds a control token of the model.
        """
        return self._ids(text, END, self._end)

    def instruct_ids(self, text: str) -> Ids:
        """The ids of an instruction with its template, `<|im_start|>user\\n...<|im_end|>\\n`: int32 [n].

        Raises:
            InvalidArgument: `text` holds a control token of the model.
        """
        ids = self._encode(USER + text + END)
        check_no_control_token("options.instruct", ids[ROLE_LENGTH - 1 : -len(self._end)], self._special)
        return np.array(ids, np.int32)

    @cached_property
    def appended(self) -> AppendedTokens:
        """The tokens of a text that comes piece by piece; `begin_text` begins one.

        Raises:
            Unsupported: the tokenizer of this checkpoint is of another kind.
        """
        return AppendedTokens(self._tokenizer, self._special, QWEN2_SPLIT)

    @staticmethod
    def begin_text() -> Tail:
        """The tail of a text of which nothing is known yet: the line break of the role, whose token is hidden."""
        return Tail(text=ROLE[-1], begin=-1, hidden=1)

    def _ids(self, text: str, suffix: str, tail: list[int]) -> Ids:
        """Those of a text between the role and a suffix, whose tokens are `tail`."""
        # Line breaks at the start of the text may merge with the role's. So the whole template is tokenised and then
        # cut by position, as the official code does it.
        ids = self._encode(ROLE + text + suffix)
        inner = ids[ROLE_LENGTH : -len(tail)]
        check_no_control_token("text", inner, self._special)
        head = self.role_ids[: ROLE_LENGTH - 1].tolist()
        assert ids[: len(head)] == head and ids[-len(tail) :] == tail
        return np.array(inner, np.int32)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids


def _load(folder: Path) -> tokenizers.Tokenizer:
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer = read_tokenizer(folder, TOKENIZER_FILE)
    else:
        tokenizer = qwen2_tokenizer(folder, VOCABULARY_FILE, MERGES_FILE)
    _add_tokens(tokenizer, folder)
    return tokenizer


def _add_tokens(tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    """Add the tokens of tokenizer_config.json that the tokenizer does not have yet, in the order of their ids."""
    if not (folder / SETTINGS_FILE).is_file():
        return
    listed: Any = read_json(folder, SETTINGS_FILE).get("added_tokens_decoder", {})
    try:
        wanted = {int(index): AddedToken(**token) for index, token in listed.items()}
    except (AttributeError, TypeError, ValueError):
        raise CheckpointError(f"{SETTINGS_FILE}: added_tokens_decoder is malformed") from None
    known = tokenizer.get_added_tokens_decoder()
    tokenizer.add_tokens([wanted[index] for index in sorted(wanted) if index not in known])
    for index, token in wanted.items():
        if tokenizer.token_to_id(token.content) != index:
            raise CheckpointError(f"{SETTINGS_FILE}: token {token.content!r} cannot have the id {index}")


def read(folder: Path) -> tuple[Qwen3TTSConfig, Tokenizer]:
    """Configuration and tokenizer of the checkpoint in `folder`.

    Raises:
        CheckpointError: it cannot be served.
    """
    config = load_config(folder)
    return config, Tokenizer(folder)
