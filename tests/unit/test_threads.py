"""How many threads a model's process computes with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from voice_clone.errors import InvalidArgument
from voice_clone.qwen3_tts.stages import use_threads
from voice_clone.settings import Settings


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Five to begin with; what they were afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("given", "share", "expected"), [("", 1, 5), ("", 2, 2), ("", 9, 1), ("3", 1, 3), ("3", 2, 3)])
def test_the_setting_counts_and_else_a_share_of_what_there_is(given: str, share: int, expected: int) -> None:
    use_threads(Settings({}, {"VOICE_CLONE_THREADS": given} if given else {}), share)
    assert torch.get_num_threads() == expected


def test_no_threads_are_none() -> None:
    with pytest.raises(InvalidArgument, match="threads"):
        use_threads(Settings({}, {"VOICE_CLONE_THREADS": "0"}))
