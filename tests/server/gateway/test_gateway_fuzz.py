"""Schemathesis makes requests out of the gateway's own description: no 500, no answer that is not described."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]


def fuzz(gateway: Gateway, folder: Path, *options: str) -> None:
    """One run; fails with its report."""
    expected = '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]\n'  # 501: no model for it
    (folder / "schemathesis.toml").write_text(expected)
    command = [
        *(Path(sys.executable).with_name("schemathesis"), "run", f"{gateway.url}/openapi.json", "--no-color"),
        *("--seed", str(random.getrandbits(32)), "--generation-database", "none"),  # pytest-randomly seeds `random`
        # Which fields go together no schema says: a contradiction is a 400 though each field is right.
        *("--exclude-checks", "positive_data_acceptance"),
        *("--exclude-path", "/v1/audio/detect"),  # without a detector any bytes are a file of which nothing is known
        *options,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


def test_requests_made_from_the_description(gateway: Gateway, voice: str, tmp_path: Path) -> None:
    # It finds the voices of other tests in the list, and must not delete them.
    fuzz(
        gateway, tmp_path, "--phases", "examples,coverage,fuzzing", "--max-examples", "5", "--exclude-method", "DELETE"
    )


@pytest.mark.long
@pytest.mark.parametrize("key", [None, "a-key-that-may-do-everything"])
def test_many_requests(
    private_server: TritonServer, tmp_path: Path, reference_clip: bytes, reference_text: str, key: str | None
) -> None:
    server = private_server.start()
    with Client(server.url) as client:
        client.upload("0", reference_clip, reference_text=reference_text, wait=True)  # a name that it finds by itself
    environment, options = {}, []
    if key is not None:
        environment["VOICE_CLONE_GATEWAY_API_KEYS"] = f"{key} speak,manage"
        options = ["--header", f"Authorization: Bearer {key}"]
    with Gateway(server.url, tmp_path / "log", "--jobs-dir", str(tmp_path / "jobs"), **environment) as gateway:
        fuzz(gateway, tmp_path, "--max-examples", "100", *options)
    assert server.ready() and "Traceback" not in (tmp_path / "log").read_text()
