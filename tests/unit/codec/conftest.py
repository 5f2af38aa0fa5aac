"""A small codec decoder."""

from __future__ import annotations

import pytest

from tests.support.families.small_codec import small_decoder
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return small_decoder()
