"""The process of a model dies: its server ends instead of letting its callers wait, and the next one has all voices."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc as triton
import tritonclient.utils

from tests.support.doubles.fakes import clip
from tests.support.servers.cache_calls import Cache
from tests.support.servers.family_models import make_repository
from tests.support.servers.server_processes import process_of
from tests.support.waiting import WAIT, until
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough

ENCODER = "qwen3_tts_voice_encoder"


def start(folder: Path, delay: float = 0.0, *options: str) -> TritonServer:
    """A server whose encoder makes the file `begun` when it has a clip, and needs `delay` seconds for it."""
    models = folder / "models"
    if not models.exists():
        make_repository(models, ("qwen3_tts",))
    slow = {"FAKE_DELAY": str(delay), "FAKE_BEGUN": str(folder / "begun")}
    return TritonServer(None, folder / "voices", models=models, log=folder / "log", options=options, environment=slow)


def test_a_server_that_has_lost_a_model_ends_though_a_request_hangs(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        cache = Cache(server)
        cache("upload", name="Ada", audio=clip(1), options={"wait": True})
        cache.close()
        server.kill()
    (tmp_path / "begun").unlink()
    with start(tmp_path, 10 * WAIT) as server, ThreadPoolExecutor(1) as pool:
        assert server.process is not None
        cache = Cache(server)
        cache("resolve", name="Ada")  # now the encoder has said what it is
        waiting = pool.submit(cache, "resolve", audio=clip(2))
        until((tmp_path / "begun").exists)
        os.kill(process_of(ENCODER, server), signal.SIGKILL)
        assert server.process.wait(WAIT) == -signal.SIGKILL, "it could end though a request hung"
        with pytest.raises(tritonclient.utils.InferenceServerException) as ended:
            waiting.result(WAIT)
        # By the end of the server: if Triton did that with a model that died, this watch would be of no use any more.
        assert "UNAVAILABLE" in str(ended.value.status()), ended.value
        cache.close()
    assert f"the process of the model {ENCODER} has died; the server ends," in (tmp_path / "log").read_text()
    with start(tmp_path) as server:
        cache = Cache(server)
        assert cache("resolve", name="Ada")[0]["status"] in ("hit", "restored")
        cache.close()
        server.kill()


def test_a_model_that_is_unloaded_is_not_lost(tmp_path: Path) -> None:
    options = ["--model-control-mode=explicit", "--load-model=*"]
    with start(tmp_path, 0.0, *options) as server, triton.InferenceServerClient(server.url) as client:
        assert server.process is not None
        client.unload_model(ENCODER)
        with pytest.raises(psutil.TimeoutExpired):
            psutil.Process(server.process.pid).wait(5.0)  # many looks, and what they lead to
        client.load_model(ENCODER)
        assert client.is_model_ready(ENCODER)
        server.kill()
