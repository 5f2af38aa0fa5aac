"""What the routes of voices tell of styles; the server is a double before a real cache of voices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.doubles.fakes import Voices, clip
from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import Server
from tests.support.waiting import until


@pytest.fixture
def voices(tmp_path: Path) -> Iterator[Voices]:
    """Ada, with a style that is longer than her first clip."""
    voices = Voices(tmp_path / "voices")
    for seed, seconds, options in ((1, 1.0, {}), (2, 2.0, {"style": "happy"})):
        voices.call("upload", {"wait": True, **options}, name="Ada", audio=clip(seed, seconds), consent=f"yes {seed}")
    yield voices
    voices.cache.close()


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def http(triton: Server, serve: Serve, voices: Voices, audit: Path) -> httpx2.Client:
    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        given = {name: each.decode() if name in ("name", "consent") else each for name, each in inputs.items()}
        reply = voices.call(given.pop("operation").decode(), json.loads(given.pop("options", b"{}")), **given)
        return {"result": json.dumps(reply.result).encode(), "artifacts": reply.artifacts or b""}

    triton.answer = answer
    return serve(triton.url, audit_log=str(audit))


def lines(audit: Path, count: int) -> list[dict[str, Any]]:
    until(lambda: audit.exists() and len(audit.read_text().splitlines()) == count)
    return [json.loads(line) for line in audit.read_text().splitlines()]


def test_all_fields_of_a_style_are_shown(http: httpx2.Client, voices: Voices) -> None:
    shown, known = http.get("/v1/audio/voices/Ada").json(), voices.get()
    for answered, record in ((shown, known), (shown["styles"]["happy"], known["styles"]["happy"])):
        for field in ("digest", "duration", "sample_rate", "file_size", "report", "consent"):
            assert answered[field] == record[field], field
        assert (answered["id"], answered["name"]) == (shown["id"], "Ada")
    assert shown["styles"]["happy"]["digest"] != shown["digest"]
    [listed] = http.get("/v1/audio/voices").json()["uploaded_voices"]
    assert listed["styles"]["happy"]["id"] == listed["id"] == shown["id"]


def test_the_answer_to_an_upload_is_about_its_clip(http: httpx2.Client, voices: Voices, audit: Path) -> None:
    form = {"name": "Ada", "consent": "yes 3", "style": "sad"}
    answer = http.post("/v1/audio/voices", data=form, files={"audio_sample": ("a.wav", clip(3, 1.5))}).json()
    known = voices.get()["styles"]["sad"]
    assert answer["voice"]["report"] == known["report"] and answer["voice"]["consent"] == "yes 3"
    assert answer["voice"]["warnings"] == known["warnings"] and answer["voice"]["file_size"] == known["file_size"]
    assert answer["id"] == answer["voice"]["id"] == http.get("/v1/audio/voices/Ada").json()["id"]
    [line] = lines(audit, 1)
    assert (line["action"], line["voice"], line["style"]) == ("upload", "Ada", "sad")


def test_the_clip_of_a_style_can_be_heard(http: httpx2.Client, audit: Path) -> None:
    for query, expected in (
        ("", clip(1, 1.0)),
        ("?style=neutral", clip(1, 1.0)),
        ("?style=Happy", clip(2, 2.0)),
        ("?style=sad,happy", clip(2, 2.0)),
    ):
        answer = http.get(f"/v1/audio/voices/Ada/audio{query}")
        assert (answer.status_code, answer.content) == (200, expected), query
        head = http.head(f"/v1/audio/voices/Ada/audio{query}")
        assert int(head.headers["content-length"]) == len(expected)
        assert head.headers["etag"] == answer.headers["etag"]
        again = http.get(f"/v1/audio/voices/Ada/audio{query}", headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304
    missing = http.get("/v1/audio/voices/Ada/audio?style=sad")
    assert missing.status_code == 400 and "neutral, happy" in missing.json()["error"]["message"]
    assert [line.get("style") for line in lines(audit, 4)] == [None, "neutral", "Happy", "sad,happy"]


def test_the_end_of_a_style_is_not_that_of_its_voice(http: httpx2.Client, audit: Path) -> None:
    gone = http.delete("/v1/audio/voices/Ada/styles/happy").json()
    assert (gone["object"], gone["style"], gone["deleted"]) == ("audio.voice.style.deleted", "happy", True)
    assert http.get("/v1/audio/voices/Ada").json()["id"] == gone["id"]
    [line] = lines(audit, 1)
    assert (line["action"], line["style"]) == ("delete", "happy")


def test_the_description_names_what_an_upload_of_a_style_may_answer(http: httpx2.Client) -> None:
    described = http.get("/openapi.json").json()["paths"]
    assert "404" in described["/v1/audio/voices"]["post"]["responses"]
    assert "style" in {each["name"] for each in described["/v1/audio/voices/{name}/audio"]["get"]["parameters"]}


def test_a_style_is_not_designed(http: httpx2.Client) -> None:
    answer = http.post("/v1/audio/voices", files={name: (None, name) for name in ("name", "prompt", "style")})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and "audio_sample" in message and "style" in message
