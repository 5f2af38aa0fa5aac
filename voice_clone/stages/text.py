"""Texts as tokens: limits, control tokens, checks, and the tokenizer that several families share. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from voice_clone.checkpoint_folder import check_file, keep_no_words, read_json, read_tokenizer
from voice_clone.errors import CheckpointError, InvalidArgument, quoted
from voice_clone.stages.byte_pairs import QWEN2_SPLIT, Vocabulary, open_vocabulary

if TYPE_CHECKING:  # the library is imported where it is needed
    import tokenizers

TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILE = "vocab.json"
MERGES_FILE = "merges.txt"
SETTINGS_FILE = "tokenizer_config.json"

MAX_TOKEN_LENGTH = 64  # characters; on average tokens are shorter in any text, and counting those of a huge one is slow

Ids = NDArray[np.int32]
C = TypeVar("C")
T = TypeVar("T")


def reader(load_config: Callable[[Path], C], tokenizer: Callable[[Path, C], T]) -> Callable[[Path], tuple[C, T]]:
    """A function that reads configuration and tokenizer of a checkpoint; it raises CheckpointError as both do."""

    def read(folder: Path) -> tuple[C, T]:
        config = load_config(folder)
        return config, tokenizer(folder, config)

    return read


class PlainTokenizer:
    """The tokenizer of a checkpoint; each text is encoded by itself.

    Args:
        folder, file: where the tokenizer is.
        room: ids that the talker has.
        where: the entry of the configuration that says so, for the error.
        spoken: whether a text may hold an added token.
        vocabulary: the tokenizer, if it is in more files than `file`.

    Raises:
        CheckpointError: the file is missing or malformed, or has more tokens than the talker.
    """

    def __init__(
        self,
        folder: Path,
        file: str,
        room: int,
        where: str,
        spoken: Callable[[str], Any] = lambda token: False,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        if vocabulary is None:
            vocabulary = open_vocabulary(folder, [file], partial(read_tokenizer, folder, file))
        self.vocabulary = vocabulary
        if (count := vocabulary.size) > room:
            raise CheckpointError(f"{file}: has {count} tokens, but {where} is {room}")
        self._encode = vocabulary.ids
        added = vocabulary.added.items()
        self._control = {index: token.content for index, token in added if not spoken(token.content)}

    def _ids_of(self, name: str, text: str) -> list[int]:
        """The ids of the text `name` of a request. A text that holds a control token of the model is refused."""
        ids = self._encode(text)
        check_no_control_token(name, ids, self._control)
        return ids


def limited_ids(name: str, text: str, tokenize: Callable[[str], Ids], most: int) -> Ids:
    """The tokens of a text, int32 [n], n <= `most`.

    Args:
        name: of the text in the request, for the error.

    Raises:
        InvalidArgument: the text is too long. One with very many characters is refused before it is tokenised.
    """
    if len(text) > MAX_TOKEN_LENGTH * most:
        raise InvalidArgument(f"`{name}` has {len(text)} characters; {most} tokens are allowed, split it")
    ids = tokenize(text)
    if len(ids) > most:
        raise InvalidArgument(f"`{name}` has {len(ids)} tokens; at most {most} are allowed, split it")
    return ids


def check_no_control_token(name: str, ids: Sequence[int], control: Mapping[int, str]) -> None:
    """Check that a text does not command the model.

    Args:
        name: of the text, for the error.
        ids: its tokens.
        control: the model's control tokens, by their ids.

    Raises:
        InvalidArgument: one of the tokens is a control token.
    """
    for index in ids:
        if index in control:
            raise InvalidArgument(f"the `{name}` holds {quoted(control[index])}, a control token; remove it")


def check_range(name: str, numbers: NDArray[Any], limit: int) -> None:
    """Check that tokens or codes, any number of them, lie in 0..limit - 1.

    Raises:
        InvalidArgument: one does not.
    """
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= limit):
        raise InvalidArgument(f"{name} must lie in 0..{limit - 1}")


def qwen2_tokenizer(folder: Path, vocabulary_file: str, merges_file: str) -> tokenizers.Tokenizer:
    """Qwen2's byte-level BPE without added tokens, from its two files.

    Source: transformers 4.57.3 `Qwen2Converter`.

    Raises:
        CheckpointError: a file is missing or malformed.
    """
    import tokenizers
    from tokenizers import Regex, models, normalizers, pre_tokenizers

    for name in (vocabulary_file, merges_file):
        check_file(folder, name)
    try:
        model = models.BPE.from_file(*(str(folder / name) for name in (vocabulary_file, merges_file)))
    except Exception:  # the library raises plain Exception
        read_json(folder, vocabulary_file)
        raise CheckpointError(f"{merges_file}: its merges are malformed or do not fit {vocabulary_file}") from None
    tokenizer = tokenizers.Tokenizer(model)
    keep_no_words(tokenizer)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def qwen_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a checkpoint folder: tokenizer.json, or vocab.json and merges.txt, with the added tokens of
    tokenizer_config.json.

    Raises:
        CheckpointError: a file is missing or malformed.
    """
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer = read_tokenizer(folder, TOKENIZER_FILE)
    else:
        tokenizer = qwen2_tokenizer(folder, VOCABULARY_FILE, MERGES_FILE)
    _add_tokens(tokenizer, folder)
    return tokenizer


def qwen_vocabulary(folder: Path) -> Vocabulary:
    """The vocabulary of `qwen_tokenizer`, which a later start need not read. Raises: as `qwen_tokenizer`."""
    names = TOKENIZER_FILE, VOCABULARY_FILE, MERGES_FILE, SETTINGS_FILE
    return open_vocabulary(folder, names, partial(qwen_tokenizer, folder))


def _add_tokens(tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    """Add the tokens of tokenizer_config.json that the tokenizer does not have yet, in the order of their ids."""
    if not (folder / SETTINGS_FILE).is_file():
        return
    from tokenizers import AddedToken

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
