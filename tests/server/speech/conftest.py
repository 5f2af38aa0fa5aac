"""A gateway in front of the server of a file, which is the file's own `server` if it has one."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from perf.bench.gateway_process import Gateway
from voice_clone_server.triton_server import TritonServer


@pytest.fixture(scope="module")
def gateway(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(server.url, tmp_path_factory.mktemp("gateway") / "log") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def http(gateway: Gateway) -> Iterator[httpx2.Client]:
    """A client of that gateway."""
    with httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False) as http:
        yield http
