"""A real gateway in front of the real tritonserver, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import httpx2
import pytest
from openai import OpenAI
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.support.servers.jobs import VOICE
from tests.support.servers.running import SETTINGS, running
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.triton_server import TritonServer


@pytest.fixture(scope="session")
def gateway(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway without keys, which takes jobs."""
    folder = tmp_path_factory.mktemp("gateway")
    with Gateway(server.url, folder / "log", "--jobs-dir", str(folder / "jobs")) as gateway:
        yield gateway
        log = (folder / "log").read_text()
        assert "Traceback" not in log, log


@pytest.fixture(scope="session")
def lenient_gateway(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for the clients of vendors, which have no field for a consent, nor one for the length of a speech: a random
    checkpoint hardly ever ends one."""
    folder = tmp_path_factory.mktemp("lenient-gateway")
    with Gateway(server.url, folder / "log", "--allow-partial", "true", "--vendors-consent", "by contract") as gateway:
        yield gateway
        assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx2.Client]:
    """A plain client of that gateway."""
    with httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False, verify=False) as client:
        yield client


@pytest.fixture
def openai(gateway: Gateway) -> Iterator[OpenAI]:
    """The official client of that gateway, as it comes."""
    with closing(OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0)) as client:
        yield client


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server that speaks in the demo's voice."""
    with running(SHIPPED, tmp_path_factory.mktemp("demo"), **SETTINGS) as server:
        with Client(server.url) as client:
            client.upload(VOICE, CLIP, wait=True)
        yield server
