"""What SageMaker and Vertex AI ask of tritonserver: their endpoints of it, as they start it, with `speech_whole`.

Their start scripts also close HTTP, gRPC and metrics, which the tests need to see whether the server is ready.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.families.factories import CheckpointFactory
from tests.support.waiting import WAIT
from voice_clone_server.triton_server import TritonServer, free_ports

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

MODEL = "speech_whole"
LOADED = (MODEL, "qwen3_tts", "qwen3_tts_voice_encoder", "speaker_cache")
"""As docs/triton_api.md says: Triton loads the steps of an ensemble by itself, but not what a model calls."""
VERTEX = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
SAGEMAKER = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": MODEL, "SAGEMAKER_TRITON_PING_MODE": "ready"}


@pytest.fixture(scope="module")
def addresses(
    checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Where the server is asked for health and speech, by host."""
    folder = tmp_path_factory.mktemp("hosts")
    sagemaker, vertex = free_ports(2)
    options = ["--allow-sagemaker=true", f"--sagemaker-port={sagemaker}", "--model-namespacing=true"]
    options += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in LOADED)]
    options += ["--allow-vertex-ai=true", f"--vertex-ai-port={vertex}", f"--vertex-ai-default-model={MODEL}"]
    with TritonServer(
        checkpoint_folder("tiny", 0),
        folder / "voices",
        log=folder / "log",
        options=options,
        environment=VERTEX | SAGEMAKER,
    ) as server:
        yield {
            "sagemaker health": f"http://127.0.0.1:{sagemaker}/ping",
            "sagemaker": f"http://127.0.0.1:{sagemaker}/invocations",
            "vertex health": f"http://127.0.0.1:{vertex}/health",
            "vertex": f"http://127.0.0.1:{vertex}/predict",
        }
        assert server.ready()
        server.kill()


def asked(**more: list[Any]) -> bytes:
    """The body of a request for a short speech of a speaker embedding."""
    given: dict[str, tuple[str, list[Any]]] = {
        "text": ("BYTES", ["Every evening the boats came home."]),
        "speaker_embedding": ("FP32", [1.0] * 64),
        "max_frames": ("INT32", [3]),
    }
    given |= {name: ("BYTES", value) for name, value in more.items()}
    inputs = [
        {"name": name, "datatype": kind, "shape": [len(data)], "data": data} for name, (kind, data) in given.items()
    ]
    return json.dumps({"inputs": inputs}).encode()


def post(url: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON of an answer."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize("host", ["sagemaker", "vertex"])
def test_a_whole_speech(addresses: dict[str, str], host: str) -> None:
    with urllib.request.urlopen(addresses[f"{host} health"], timeout=WAIT) as answer:
        assert answer.status == 200
    status, answer = post(addresses[host], asked())
    assert status == 200, answer
    outputs = {each["name"]: each["data"] for each in answer["outputs"]}
    assert len(outputs["audio"]) == 3 * 1920 and outputs["sample_rate"] == [24000]
    assert json.loads(outputs["info"][0])["finish_reason"] == "length"
    status, answer = post(addresses[host], asked(model=["fish_speech"]))
    assert status == 400 and "invalid_argument: `model` must be a family of this server: qwen3_tts" in answer["error"]
