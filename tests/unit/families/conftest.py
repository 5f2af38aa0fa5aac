"""What the tests of all families share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.families.trials import TRIALS


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The small checkpoint of a family, made once."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = TRIALS[family].make(0, tmp_path_factory.mktemp(family) / "checkpoint")
        return made[family]

    return folder
