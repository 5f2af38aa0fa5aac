"""A fresh cache for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes import Voices


@pytest.fixture
def make_voices(tmp_path: Path) -> Iterator[Callable[..., Voices]]:
    """Makes caches, all closed at the end of the test; each in a directory of its own if given a name for it."""
    made: list[Voices] = []

    def make(directory: str = "speakers", **config: Any) -> Voices:
        made.append(Voices(tmp_path / directory, **config))
        return made[-1]

    yield make
    for voices in made:
        voices.cache.close()


@pytest.fixture
def voices(make_voices: Callable[..., Voices]) -> Voices:
    """An empty cache on an empty directory. Nothing is shared between tests."""  # C15
    return make_voices()
