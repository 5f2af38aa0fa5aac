"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.families.factories import CheckpointFactory
from tests.support.official.postgres import Databases, PostgresServer, binaries, running_postgres

if TYPE_CHECKING:  # playwright is imported where there is a page
    from playwright.sync_api import Browser, Page

# The networks of the tests are tiny: one thread a process is faster than several that wait for each other, here and in
# the models of the servers that the tests start. Where a test has more, a thread that waits spins on the core that
# another one needs. torch reads both when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Fixtures import what needs torch: the process that hands out the tests computes nothing, nor do many files of tests.
pytest_plugins = [
    "tests.support.chosen_files",
    "tests.support.repeatable",
    "tests.support.strict_run",
    "tests.support.work_shares",
]

# tritonclient and urllib would ask a proxy of the environment for the servers that the tests start.
LOCAL = "localhost,127.0.0.1,::1"
os.environ["no_proxy"] = ",".join(filter(None, (os.environ.get("no_proxy"), LOCAL)))

# A shell's background jobs ignore Ctrl-C, and so would the processes that tests start there and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Those of `nohup` ignore the signal of a terminal that closes.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> CheckpointFactory:
    """Makes the random checkpoint of a shape and seed, once a run."""
    from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint

    made: dict[tuple[str, int], Path] = {}

    def folder(shape: str, seed: int) -> Path:
        if (shape, seed) not in made:
            made[shape, seed] = tmp_path_factory.mktemp(f"{shape}-{seed}") / "checkpoint"
            make_checkpoint(shape, seed, made[shape, seed])
        return made[shape, seed]

    return folder


@pytest.fixture(scope="session")
def endless_checkpoint(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint of seed 0, but for the end of speech."""
    from tools.families.qwen3_tts.checkpoint_maker import make_endless

    return make_endless(checkpoint_folder("tiny", 0), tmp_path_factory.mktemp("endless") / "checkpoint")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server, started for the first test that asks for it."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed (on Debian: apt-get install postgresql)")
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def databases(postgres: PostgresServer) -> Databases:
    """Empty databases of that server."""
    return Databases(postgres)


@pytest.fixture(scope="session")
def reference_clip() -> bytes:
    """The WAV file of the shipped clip of speech: 5.2 s, 22.05 kHz."""
    return (Path(__file__).parent.parent / "tools" / "data" / "reference.wav").read_bytes()


@pytest.fixture(scope="session")
def reference_text() -> str:
    """Its transcript."""
    return (Path(__file__).parent.parent / "tools" / "data" / "reference.txt").read_text(encoding="utf-8").strip()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from tests.support.official.chromium import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    from tests.support.official.chromium import tab

    with tab(browser) as page:
        yield page
