"""Limits of texts, and control tokens in them."""

from __future__ import annotations

import numpy as np
import pytest

from voice_clone.errors import InvalidArgument
from voice_clone.stages.text import MAX_TOKEN_LENGTH, Ids, check_no_control_token, limited_ids


def words(text: str) -> Ids:
    return np.arange(len(text.split()), dtype=np.int32)


def test_a_text_of_the_longest_kind_is_taken() -> None:
    assert limited_ids("text", "a b c", words, 3).tolist() == [0, 1, 2]


def test_a_text_of_too_many_tokens_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at most 3"):
        limited_ids("reference_text", "a b c d", words, 3)


def test_a_huge_text_is_not_tokenised() -> None:
    def fail(text: str) -> Ids:
        raise AssertionError("it was tokenised")

    long = "a" * (3 * MAX_TOKEN_LENGTH + 1)
    with pytest.raises(InvalidArgument, match="text has 193 characters; 3 tokens are allowed, split it"):
        limited_ids("text", long, fail, 3)
    assert limited_ids("text", long[1:], words, 3).tolist() == [0]


def test_control_tokens_are_refused_by_name() -> None:
    check_no_control_token("text", [1, 2], {3: "<|end|>"})
    with pytest.raises(InvalidArgument, match=r"<\|end\|>"):
        check_no_control_token("transcript", [1, 3], {3: "<|end|>"})
