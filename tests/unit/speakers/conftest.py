"""A fresh cache for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.doubles.fakes import Voices
from tests.support.official.postgres import Databases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of a file that names STORES run on each of them, but those that are marked to be about files.

    Those on the second store, which has tests of its own, are thorough.
    """
    about_files = metafunc.definition.get_closest_marker("files") is not None
    if "store" in metafunc.fixturenames and hasattr(metafunc.module, "STORES") and not about_files:
        first, *others = metafunc.module.STORES
        stores = [first, *(pytest.param(other, marks=pytest.mark.thorough) for other in others)]
        metafunc.parametrize("store", stores, indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    """Where voices persist: files, unless the file of the test names STORES."""
    return getattr(request, "param", "files")


@pytest.fixture
def new_dsn(store: str, request: pytest.FixtureRequest) -> Iterator[Callable[[], str | None]]:
    """Gives the address of an empty database; None if voices persist in files."""
    taken: list[str] = []

    def new() -> str | None:
        if store == "files":
            return None
        databases: Databases = request.getfixturevalue("databases")
        taken.append(databases.take())
        return taken[-1]

    yield new
    for dsn in taken:
        request.getfixturevalue("databases").give_back(dsn)


@pytest.fixture
def make_voices(tmp_path: Path, new_dsn: Callable[[], str | None]) -> Iterator[Callable[..., Voices]]:
    """Makes caches, all closed at the end of the test; each on a store of its own if given a name for it."""
    made: list[Voices] = []
    stores: dict[str, str | None] = {}

    def make(directory: str = "speakers", **config: Any) -> Voices:
        if directory not in stores:
            stores[directory] = new_dsn()
        made.append(Voices(tmp_path / directory, dsn=stores[directory], **config))
        return made[-1]

    yield make
    for voices in made:
        voices.cache.close()


@pytest.fixture
def voices(make_voices: Callable[..., Voices]) -> Voices:
    """An empty cache on an empty store. Nothing is shared between tests."""  # C15
    return make_voices()
