"""A talker of each kind: its frames computed by torch, which takes eight times as long, or by native code."""

from __future__ import annotations

import pytest

from tests.support.families.talkers import make_talker, native_of, read_config
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.talker import Talker


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSConfig:
    return read_config("projected", tmp_path_factory.mktemp("checkpoint") / "folder")


@pytest.fixture(scope="module", params=[pytest.param("torch", marks=pytest.mark.thorough), "native"])
def talker(config: Qwen3TTSConfig, request: pytest.FixtureRequest) -> Talker:
    talker = make_talker(config, 0)
    return native_of(talker, "fp32") if request.param == "native" else talker
