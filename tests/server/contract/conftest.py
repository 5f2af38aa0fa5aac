"""One server with all families, the example of docs/adding_a_family.md among them, and what each says without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache as remembered
from pathlib import Path

import httpx2
import pytest
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.support.families.bare import Bare
from tests.support.families.trials import ADA, CARDS, EXAMPLE, MUTE, TRIALS, bare
from tests.support.servers.running import SETTINGS
from tests.support.servers.server_processes import memory_by_process
from tools.models import write
from voice_clone.families.cosyvoice3.config import MARK
from voice_clone_server.triton_server import MODELS, TritonServer

DEFAULT = "qwen3_tts"
CHIRP_STREAMS = 3


@pytest.fixture(scope="package")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By family. The mark of CosyVoice3 would make a file, or end the server, if a parser of YAML saw it."""
    folder = tmp_path_factory.mktemp("contract")
    order = sorted(CARDS, key=lambda name: name != DEFAULT)  # the first one is the default
    made = {name: TRIALS[name].make(0, folder / name) for name in order}
    sprung = made["cosyvoice3"] / "sprung"
    (made["cosyvoice3"] / MARK).write_text(f"x: !!python/object/apply:os.mkdir ['{sprung}']\n- {{", encoding="utf-8")
    return made


@pytest.fixture(scope="package")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of all families' models; those of the example are written from its card."""
    folder = tmp_path_factory.mktemp("example") / "models"
    write([EXAMPLE], folder)
    return [MODELS, folder]


@pytest.fixture(scope="package")
def server(
    checkpoints: dict[str, Path],
    repositories: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
    reference_clip: bytes,
    reference_text: str,
) -> Iterator[TritonServer]:
    """It takes clips of a minute, marks what it is asked to, and has two voices. It says how long it took to start."""
    folder = tmp_path_factory.mktemp("contract-server")
    environment = {
        **SETTINGS,
        "VOICE_CLONE_MAX_CLIP_SECONDS": "60",
        "VOICE_CLONE_MARK": "requested",
        "VOICE_CLONE_CHIRP_MAX_STREAMS": str(CHIRP_STREAMS),
        "VOICE_CLONE_CHIRP_MAX_LENGTH": "2048",
        "VOICE_CLONE_CHIRP_MAX_TEXT_TOKENS": "200",
    }
    began, given = time.monotonic(), list(checkpoints.values())
    server = TritonServer(given, folder / "voices", models=repositories, log=folder / "log", environment=environment)
    with server.start(900.0):  # it has some 40 processes, each of which a slow machine starts in half a minute
        ready = time.monotonic() - began
        with Client(server.url) as client:
            client.upload(ADA, reference_clip, reference_text=reference_text, wait=True)
            client.upload(MUTE, reference_clip, wait=True)
        yield server
        held = sum(memory_by_process(server).values())
        print(f"\n{len(given)} families: ready after {ready:.1f} s, {held / 1e9:.2f} GB held")  # noqa: T201
        assert server.ready(), "a test made the server unready"
        assert not (checkpoints["cosyvoice3"] / "sprung").exists(), "the mark was read"
        server.kill()


@pytest.fixture(scope="package")
def client(server: TritonServer) -> Iterator[Client]:
    """Of all families."""
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="package")
def bare_of(checkpoints: dict[str, Path]) -> Callable[[str], Bare]:
    """The stages of a family."""
    return remembered(lambda family: bare(family, checkpoints[family]))


@pytest.fixture(scope="package")
def gateway(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """With an alias for two families."""
    log, aliases = tmp_path_factory.mktemp("contract-gateway") / "log", "tts-1=qwen3_tts,tts-1-hd=chirp"
    with Gateway(server.url, log, "--model-aliases", aliases) as gateway:
        yield gateway


@pytest.fixture(scope="package")
def http(gateway: Gateway) -> Iterator[httpx2.Client]:
    """A client of that gateway."""
    with httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False) as http:
        yield http
