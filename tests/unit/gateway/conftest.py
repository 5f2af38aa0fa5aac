"""The gateway in a thread, in front of the double of Triton."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.doubles.gateway_thread import Serve, serving
from tests.support.doubles.triton_double import Server, listening


@pytest.fixture
def triton() -> Iterator[Server]:
    """The double, listening on a free port."""
    with listening() as server:
        yield server


@pytest.fixture(scope="session")
def ending() -> Iterator[list[threading.Thread]]:
    """Gateways that end while the next tests run; the run waits for them."""
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join()


@pytest.fixture
def serve(ending: list[threading.Thread]) -> Iterator[Serve]:
    """Serves a gateway with an address of Triton and settings; returns a client of it."""
    with serving(ending.append) as serve:
        yield serve
