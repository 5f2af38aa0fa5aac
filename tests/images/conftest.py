"""The images' tests run where tools/test asks for them: they build for minutes, and need docker or podman."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.images.engine import KINDS, Engine

collect_ignore_glob = [] if os.environ.get("VOICE_CLONE_TEST_IMAGES") else ["test_*.py"]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """docker or podman, with the images built."""
    engine = Engine(tmp_path_factory.mktemp("images"))
    engine.build("cpu")
    engine.build("gateway")
    yield engine
    engine.remove_all()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say on what the images were built."""
    for name, kind in KINDS.items():
        terminalreporter.write_line(f"{name}: {kind}")
