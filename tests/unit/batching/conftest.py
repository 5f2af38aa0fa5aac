"""An engine of small chunks with a short queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.doubles.counted_frames import Counter, Wish
from voice_clone.batching.engine import Engine


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def source(request: pytest.FixtureRequest) -> Counter:
    return Counter(slots=2, ahead=request.param)


@pytest.fixture
def engine(source: Counter) -> Iterator[Engine[Wish]]:
    engine: Engine[Wish] = Engine(source, schedule=(1, 2, 4), max_queue=3, prefill_chunk=4)
    yield engine
    source.free_running = True
    source.gate.release(1000)
    engine.close()
