"""The gateway in a thread, in front of the double of Triton."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.doubles.gateway_thread import Serve, Shared, client_of, serving
from tests.support.doubles.jobs_double import JOBS, Talking
from tests.support.doubles.triton_double import Server, listening
from tests.support.official.postgres import running_postgres
from tests.support.waiting import until


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


@pytest.fixture(scope="module")
def standing(ending: list[threading.Thread]) -> Iterator[tuple[Server, httpx2.URL]]:
    """A double, and the address of a gateway with the default settings in front of it."""
    with listening() as server, serving(ending.append) as serve:
        yield server, serve(server.url).base_url


@pytest.fixture
def shared(standing: tuple[Server, httpx2.URL]) -> Iterator[Shared]:
    """These for requests after which the gateway is as before: what is refused, above all."""
    triton, address = standing
    triton.reset()
    with client_of(address) as http:
        yield triton, http


@pytest.fixture(scope="session")
def new_database() -> Iterator[Callable[[], str]]:
    """Makes a database of PostgreSQL without tables; returns its address."""
    numbers = itertools.count()
    with running_postgres() as server:
        yield lambda: server.create_bare_database(f"jobs{next(numbers)}")


@pytest.fixture
def talking() -> Iterator[Talking]:
    with listening() as server:
        yield Talking(server)


@pytest.fixture
def start(serve: Serve, talking: Talking, tmp_path: Path) -> Callable[..., httpx2.Client]:
    """Starts a gateway that takes jobs."""

    def started(**settings: Any) -> httpx2.Client:
        http = serve(talking.server.url, jobs_dir=str(tmp_path / "jobs"), **settings)
        until(lambda: http.get(JOBS, headers={"Authorization": "Bearer alice"}).status_code == 200)
        return http

    return started
