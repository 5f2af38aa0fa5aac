"""How many streams a GPU takes by default."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from tests.support.families.factories import CheckpointFactory
from tests.support.pretend_gpu import pretend_gpu
from voice_clone.autoregressive.generator import stream_bytes, streams_that_fit
from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.talker import load_talker
from voice_clone.settings import Settings

GB = 10**9
RELEASED = 470_000_000  # bytes of a stream of the 0.6B shape in bf16: 4096 positions of 28 layers


@pytest.mark.parametrize(("free", "streams"), [(140 * GB, 64), (44 * GB, 64), (22 * GB, 32), (6 * GB, 8), (GB, 1)])
def test_as_many_as_its_memory_holds(free: int, streams: int) -> None:
    assert streams_that_fit(free, RELEASED) == streams


def test_none_is_not_enough() -> None:
    with pytest.raises(InvalidArgument, match=r"takes 0\.5 GB, and 0\.6 GB of the GPU are free.*smaller max_length"):
        streams_that_fit(6 * GB // 10, RELEASED)


@pytest.mark.parametrize(("given", "free", "streams"), [("", 8.0, 5), ("", 1e6, 64), ("3", 8.0, 3)])
def test_the_setting_counts_and_else_the_memory(
    given: str,
    free: float,
    streams: int,
    checkpoint_folder: CheckpointFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`free` is in streams."""
    caplog.set_level(logging.INFO)
    values: dict[str, Any] = {"checkpoint_dir": checkpoint_folder("tiny", 0), "device": "cuda", "cuda_graphs": "false"}
    values |= {"max_length": 64}
    environ = {f"VOICE_CLONE_{name.upper()}": str(value) for name, value in {**values, "max_streams": given}.items()}
    with pretend_gpu():
        one = stream_bytes(load_talker(Settings({}, {**environ, "VOICE_CLONE_MAX_STREAMS": "1"})).source.talker, 64)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free * one), 0))
        generator = load_talker(Settings({}, environ)).source
    assert generator.slots == streams and generator.memory_bytes <= streams * one
    assert ("max_streams is" in caplog.text) is (not given)
