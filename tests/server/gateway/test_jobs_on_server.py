"""Jobs on the real server, in the demo's voice: what is made, what is made again, and what ends a job."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from openai import OpenAI
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.support.servers.jobs import (
    ENDED,
    JOBS,
    LONG,
    PARAGRAPHS,
    TEXT,
    VOICE,
    asked,
    content,
    further,
    gateway_with_jobs,
    made,
    sentences,
)
from tests.support.servers.running import SETTINGS, running
from tests.support.waiting import until
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.share("demo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def http(demo: TritonServer, folder: Path) -> Iterator[httpx2.Client]:
    with (
        Gateway(demo.url, folder / "log", "--jobs-dir", str(folder / "jobs")) as gateway,
        httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False, verify=False) as http,
    ):
        yield http
    assert "Traceback" not in (folder / "log").read_text()


def samples(data: bytes) -> NDArray[np.int16]:
    found, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate == 24000
    return np.asarray(found)


def test_only_what_is_not_kept_is_made(http: httpx2.Client) -> None:
    first = made(http, asked(TEXT, seed=5))
    assert sentences(first) == (6, 6)
    again = made(http, asked(TEXT, seed=5))
    assert sentences(again) == (6, 0)
    assert content(http, first) == content(http, again)
    changed = [PARAGRAPHS[0], "Nine cats ran home. " + PARAGRAPHS[1], PARAGRAPHS[2]]
    in_front = ["This is new.", *PARAGRAPHS]
    texts = {"changed": changed, "in front": in_front, "removed": PARAGRAPHS[1:], "twice": [*PARAGRAPHS, PARAGRAPHS[2]]}
    counts = {name: sentences(made(http, asked("\n\n".join(paragraphs), seed=5))) for name, paragraphs in texts.items()}
    assert counts == {"changed": (7, 1), "in front": (7, 1), "removed": (4, 0), "twice": (7, 1)}


def test_the_sentences_that_stay_are_the_same_samples(http: httpx2.Client) -> None:
    whole = samples(content(http, made(http, asked(TEXT, seed=6))))
    longer = samples(content(http, made(http, asked(f"This is new.\n\n{TEXT}", seed=6))))
    shorter = samples(content(http, made(http, asked("\n\n".join(PARAGRAPHS[1:]), seed=6))))
    assert len(shorter) < len(whole) < len(longer)
    assert np.array_equal(longer[-len(whole) :], whole) and np.array_equal(whole[-len(shorter) :], shorter)


@pytest.mark.parametrize(
    "more",
    [{"seed": 8}, {"temperature": 0.5}, {"x_vector_only": True}, {"language": "en"}],
    ids=lambda more: next(iter(more)),
)
def test_what_changes_the_sound_is_made_again(http: httpx2.Client, more: dict[str, Any]) -> None:
    made(http, asked(PARAGRAPHS[2], seed=7))
    total, spoken = sentences(made(http, asked(PARAGRAPHS[2], **{"seed": 7, **more})))
    assert spoken == total


@pytest.mark.parametrize(
    "more",
    [{"response_format": "mp3"}, {"speed": 1.25}, {"sample_rate": 16000}, {"loudness": -20.0}],
    ids=lambda more: next(iter(more)),
)
def test_what_is_done_to_the_file_makes_nothing_again(http: httpx2.Client, more: dict[str, Any]) -> None:
    plain = made(http, asked(TEXT, seed=9))
    other = made(http, asked(TEXT, seed=9, **more))
    assert sentences(other) == (6, 0)
    speed = more.get("speed", 1.0)
    assert other["seconds"] == pytest.approx(plain["seconds"] / speed, abs=0.1)
    assert content(http, other) != content(http, plain)


def test_segments_and_ssml(http: httpx2.Client) -> None:
    """Pauses, gains and places are those of a stream."""
    turns = [{"text": PARAGRAPHS[0], "pause_ms": 500}, {"text": PARAGRAPHS[2], "speed": 1.5}]
    job = made(http, {"segments": turns, "voice": VOICE, "response_format": "wav", "seed": 5})
    assert sentences(job)[0] == 3
    [one, other] = job["segments"]
    assert one["index"] == 0 and other["index"] == 1 and other["start"] == pytest.approx(one["end"] + 0.5)
    ssml = f'<speak>{PARAGRAPHS[0]}<break time="2s"/><prosody volume="-6dB">{PARAGRAPHS[2]}</prosody></speak>'
    job = made(http, asked(ssml, seed=5))
    assert sentences(job) == (3, 0), "the words are those of jobs before"
    assert len(samples(content(http, job))) / 24000 == pytest.approx(job["seconds"], abs=1e-3)


def test_a_part_of_the_file_and_its_tag(http: httpx2.Client) -> None:
    job = made(http, asked(PARAGRAPHS[2]))
    url = f"{JOBS}/{job['id']}/content"
    whole = http.get(url)
    assert whole.headers["content-type"] == "audio/wav" and int(whole.headers["content-length"]) == job["size"]
    tag = whole.headers["etag"]
    part = http.get(url, headers={"Range": "bytes=100-199"})
    assert part.status_code == 206 and part.content == whole.content[100:200]
    assert part.headers["content-range"] == f"bytes 100-199/{job['size']}"
    rest = http.get(url, headers={"Range": "bytes=200-", "If-Range": tag})
    assert rest.status_code == 206 and rest.content == whole.content[200:]
    assert http.get(url, headers={"Range": "bytes=200-", "If-Range": '"other"'}).content == whole.content
    assert http.get(url, headers={"If-None-Match": tag}).status_code == 304
    assert http.get(url, headers={"Range": f"bytes={job['size']}-"}).status_code == 416
    head = http.head(url)
    assert head.status_code == 200 and head.headers["etag"] == tag and not head.content
    again = made(http, asked(PARAGRAPHS[2]))
    assert http.get(f"{JOBS}/{again['id']}/content").headers["etag"] == tag, "the tag is that of the content"


def test_a_job_that_is_cancelled_or_deleted(http: httpx2.Client, folder: Path) -> None:
    text = "\n\n".join(f"This is sentence number {number} of a long text." for number in range(200))
    job = http.post(JOBS, json=asked(text, seed=11)).json()
    until(lambda: http.get(f"{JOBS}/{job['id']}").json()["sentences"]["done"] > 2)
    running = http.get(f"{JOBS}/{job['id']}").json()
    assert running["status"] == "in_progress" and running["seconds"] > 0 and running["seconds_left"] > 0
    assert http.get(f"{JOBS}/{job['id']}/content").json()["error"]["code"] == "job_not_completed"
    ended = http.post(f"{JOBS}/{job['id']}/cancel").json()
    assert ended["status"] == "cancelled" and 2 < ended["sentences"]["done"] < 200
    assert http.post(f"{JOBS}/{job['id']}/cancel").json() == ended, "once more changes nothing"
    other = made(http, asked(PARAGRAPHS[2]))
    assert http.delete(f"{JOBS}/{other['id']}").json() == {
        "id": other["id"],
        "object": "audio.job.deleted",
        "deleted": True,
    }
    assert http.get(f"{JOBS}/{other['id']}").status_code == 404
    assert not (folder / "jobs" / "results" / other["id"]).exists()
    listed = http.get(JOBS, params={"limit": 1}).json()
    assert listed["data"][0]["id"] == job["id"] and listed["has_more"]
    following = http.get(JOBS, params={"limit": 100, "after": job["id"]}).json()["data"]
    assert job["id"] not in {each["id"] for each in following} and listed["data"][0]["completed_at"] is not None
    asc = http.get(JOBS, params={"limit": 100, "order": "asc"}).json()["data"]
    assert asc[-1]["id"] == job["id"]


def test_a_voice_takes_its_speech_with_it(http: httpx2.Client, demo: TritonServer, folder: Path) -> None:
    with Client(demo.url) as client:
        client.upload("Leaving", CLIP.with_name("rms.wav"), wait=True)
        stored = folder / "jobs" / "sentences"
        others = {*stored.glob("??/*")}
        text = "\n\n".join(f"This is sentence number {number} of a long text." for number in range(200))
        done = made(http, {**asked(PARAGRAPHS[0]), "voice": "Leaving"})
        live = http.post(JOBS, json={**asked(text), "voice": "Leaving"}).json()
        until(lambda: http.get(f"{JOBS}/{live['id']}").json()["sentences"]["done"] > 2)
        assert len({*stored.glob("??/*")} - others) > 2
        assert http.delete("/v1/audio/voices/Leaving").status_code == 200
        ended = http.get(f"{JOBS}/{live['id']}").json()
        assert ended["status"] == "failed" and ended["error"]["code"] == "voice_deleted"
        gone = http.get(f"{JOBS}/{done['id']}/content")
        assert gone.status_code == 410 and gone.json()["error"]["code"] == "voice_deleted"
        assert not (folder / "jobs" / "results" / done["id"]).exists()
        assert {*stored.glob("??/*")} <= others
        assert http.post(JOBS, json={**asked(text), "voice": "Leaving"}).status_code == 404
        client.upload("Leaving", CLIP.with_name("rms.wav"), wait=True)
        assert sentences(made(http, {**asked(PARAGRAPHS[0]), "voice": "Leaving"})) == (2, 2)
        client.delete("Leaving")


def test_a_server_that_dies_is_waited_for(tmp_path: Path) -> None:
    with running(SHIPPED, tmp_path, **SETTINGS) as server:
        with Client(server.url) as client:
            client.upload(VOICE, CLIP, wait=True)
        with gateway_with_jobs(server, tmp_path / "gateway") as http:
            made(http, asked(LONG, seed=4))
            job = http.post(JOBS, json=asked(LONG.replace("ship", "boat"), seed=4)).json()
            until(lambda: further(http, job["id"], 2))
            server.kill()
            server.start()
            until(lambda: http.get(f"{JOBS}/{job['id']}").json()["status"] in ENDED)
            total, spoken = sentences(http.get(f"{JOBS}/{job['id']}").json())
            assert total == 40 and spoken == 20, "every second sentence has no ship"
            assert sentences(made(http, asked(LONG, seed=4))) == (40, 0), "the next server has the same synthesizer"


def test_damaged_speech_is_made_again(http: httpx2.Client, folder: Path) -> None:
    wanted = content(http, made(http, asked(PARAGRAPHS[0], seed=21)))
    before = {path: path.stat().st_mtime_ns for path in (folder / "jobs" / "sentences").glob("??/*")}
    newest = max(before, key=lambda path: before[path])
    newest.write_bytes(newest.read_bytes()[:-7])
    again = made(http, asked(PARAGRAPHS[0], seed=21))
    assert sentences(again) == (2, 1) and content(http, again) == wanted


def test_a_batch_by_openais_client(http: httpx2.Client) -> None:
    """A line is spoken as the same job is, and as it was in another batch."""
    job = made(http, asked(PARAGRAPHS[0], seed=12))
    bodies = [asked(PARAGRAPHS[0], seed=12), asked(PARAGRAPHS[2], seed=12), {**asked("Nobody."), "voice": "No such"}]
    lines = [
        {"custom_id": f"{number}", "method": "POST", "url": "/v1/audio/speech", "body": body}
        for number, body in enumerate(bodies)
    ]
    data = "\n".join(json.dumps(each) for each in lines).encode()
    endpoint: Any = "/v1/audio/speech"  # the client's types know no batches of speeches
    with OpenAI(base_url=f"{http.base_url}/v1", api_key="unused") as client:
        file = client.files.create(file=("lines.jsonl", data), purpose="batch")
        spoken = list[list[int]]()
        for _ in range(2):
            batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
            while (batch := client.batches.retrieve(batch.id)).status != "completed":
                assert batch.status == "in_progress"
                time.sleep(0.1)
            assert batch.output_file_id is not None and batch.error_file_id is not None
            output = client.files.content(batch.output_file_id).text
            [first, other] = [json.loads(each)["response"]["body"] for each in output.splitlines()]
            spoken.append([each["sentences"]["made"] for each in (first, other)])
            assert client.files.content(first["id"]).content == content(http, job)
            assert len(samples(client.files.content(other["id"]).content)) / 24000 == pytest.approx(other["seconds"])
            error = json.loads(client.files.content(batch.error_file_id).text)
            assert error["custom_id"] == "2" and error["response"]["status_code"] == 404
            assert error["response"]["body"]["error"]["code"] == "voice_not_found"
        assert spoken == [[0, 1], [0, 0]]
