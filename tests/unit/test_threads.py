"""How many threads a model's process computes with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint
from voice_clone.compute import prepare
from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.codec import load_decoder
from voice_clone.families.qwen3_tts.talker import load_talker
from voice_clone.native.thread_pool import thread_pool
from voice_clone.settings import ComputeSettings, Settings


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Five to begin with; what they were afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("given", "share", "expected"), [("", 1, 5), ("", 2, 2), ("", 9, 1), ("3", 1, 3), ("3", 2, 3)])
def test_the_setting_counts_and_else_a_share_of_what_there_is(given: str, share: int, expected: int) -> None:
    prepare(ComputeSettings.of(Settings({}, {"VOICE_CLONE_THREADS": given})), share)
    assert torch.get_num_threads() == expected


def test_no_threads_are_none() -> None:
    with pytest.raises(InvalidArgument, match="threads"):
        ComputeSettings.of(Settings({}, {"VOICE_CLONE_THREADS": "0"}))


@pytest.mark.parametrize("load", [load_talker, load_decoder])
def test_once_loaded_native_code_has_the_threads_and_torch_one(
    load: Callable[[Settings], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's others would spin behind a step's small operations, on cores that native threads need for the next."""
    monkeypatch.setattr("voice_clone.native.thread_pool._pool", None)
    make_checkpoint("tiny", 0, tmp_path / "checkpoint")
    load(Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(tmp_path / "checkpoint"), "VOICE_CLONE_DEVICE": "cpu"}))
    assert (thread_pool().threads, torch.get_num_threads()) == (5, 1)
