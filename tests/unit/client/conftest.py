"""A double of Triton for the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.doubles.triton_double import Server, listening


@pytest.fixture
def triton() -> Iterator[Server]:
    """The double, listening on a free port."""
    with listening() as server:
        yield server
