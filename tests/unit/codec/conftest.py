"""A small codec decoder, and decoding threads with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.doubles.codec_bench import Bench
from tests.support.families.small_codec import FORM, make_code2wav, small_decoder
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return small_decoder()


@pytest.fixture
def bench(decoder: CodecDecoder) -> Iterator[Callable[..., Bench]]:
    """Makes a decoding thread with the small decoder."""
    made: list[Bench] = []

    def new(
        max_batch: int = 4, max_queue: int = 1000, clock: Callable[[], float] = time.monotonic, **given: Any
    ) -> Bench:
        made.append(Bench(make_code2wav(decoder, FORM, max_batch=max_batch, **given), max_queue, clock))
        return made[-1]

    yield new
    for each in made:
        each.go_on.set()
        each.worker.close()
