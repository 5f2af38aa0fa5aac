"""Several texts in one request: each item succeeds or fails alone."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from voice_clone_client import Client

pytestmark = pytest.mark.share("servers")

BATCH = "/v1/audio/speech/batch"


def test_items_fail_alone(http: httpx2.Client, voice: str) -> None:
    items: list[dict[str, Any]] = [
        {"input": "One.", "response_format": "pcm"},
        {"input": " "},
        {"input": "Three.", "voice": "Nobody"},
        {"input": "Four.", "speed": 9},
        {"input": "Five.", "ref_txt": "typo"},
        {"input": "Six.", "stream": True},
        {"voice": voice},
        {"input": "Eight.", "speaker": voice, "sample_rate": 8000, "response_format": "pcm"},
        {"input": "Nine.", "response_format": "mp3"},
    ]
    asked = {"voice": voice, "seed": 1, "max_new_tokens": 4, "items": items}
    answer = http.post(BATCH, json=asked)
    assert answer.status_code == 200
    report = answer.json()
    [*_, last] = report["results"]
    assert last["status"] == "success", last
    assert report["id"].startswith("speech-batch-")
    assert (report["total"], report["succeeded"], report["failed"]) == (9, 3, 6)
    results = report["results"]
    assert [result["index"] for result in results] == list(range(9))
    assert [result["status"] == "success" for result in results] == [True] + [False] * 6 + [True] * 2
    codes = [result["error"]["code"] for result in results if result["status"] == "error"]
    assert codes == ["invalid_argument", "voice_not_found"] + ["invalid_argument"] * 4
    assert results[3]["error"]["param"] == "speed" and results[4]["error"]["param"] == "ref_txt"
    for result in (results[0], results[7], results[8]):
        assert result["info"]["mode"] == "icl" and result["info"]["cache"] in ("hit", "restored", "miss")
        assert result["info"]["voice"] == voice and result["info"]["seed"] == 1
    frames = results[0]["usage"]["output_tokens"]
    assert len(base64.b64decode(results[0]["audio_data"])) == frames * 1920 * 2
    assert len(base64.b64decode(results[7]["audio_data"])) == results[7]["usage"]["output_tokens"] * 640 * 2
    assert [results[i]["media_type"] for i in (0, 7, 8)] == [
        "audio/pcm;rate=24000",
        "audio/pcm;rate=8000",
        "audio/mpeg",
    ]
    single = http.post("/v1/audio/speech", json={"voice": voice, "seed": 1, "max_new_tokens": 4, **items[0]}).content
    mine, other = (
        np.frombuffer(pcm, "<i2").astype(int) for pcm in (single, base64.b64decode(results[0]["audio_data"]))
    )
    assert len(mine) == len(other) and np.abs(mine - other).max() <= 2


def test_wrong_batches(http: httpx2.Client, voice: str) -> None:
    for items in ([], [{"input": "x"}] * 33, ["text"], None):
        answer = http.post(BATCH, json={"voice": voice, "items": items})
        assert answer.status_code == 400 and answer.json()["error"]["param"].startswith("items")
    assert http.post(BATCH, json={"voice": voice, "items": [{"input": "x"}], "itmes": 1}).status_code == 400


def test_a_batch_in_one_clip_extracts_it_once(http: httpx2.Client, client: Client, reference_clip: bytes) -> None:
    """Eight items at once, four of them side by side, wait for one extraction: of a clip that no test sent before."""
    samples, rate = soundfile.read(io.BytesIO(reference_clip), dtype="float32")
    file = io.BytesIO()
    soundfile.write(file, 0.9 * samples, rate, format="WAV", subtype="FLOAT")
    clip = "data:audio/wav;base64," + base64.b64encode(file.getvalue()).decode()
    before = client.stats()["extractions"]
    items = [{"input": f"Item {index}.", "response_format": "pcm"} for index in range(8)]
    asked = {"reference_audio": clip, "max_frames": 2, "x_vector_only": True, "items": items}
    report = http.post(BATCH, json=asked).json()
    assert report["succeeded"] == 8, report
    assert client.stats()["extractions"] == before + 1
    reported = [result["info"]["cache"] for result in report["results"]]
    assert "miss" in reported and "hit" in reported and set(reported) <= {"miss", "hit"}
