"""Whole files: their parts, their tags, and one answer for each reader beside a writer."""

from __future__ import annotations

import json
from typing import Any

import grpc
import httpx2
import numpy as np
import pytest
from safetensors.numpy import save

from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import Failure, Server

CLIP = bytes(range(100))
AUDIO = "/v1/audio/voices/ada/audio"
FILES = (AUDIO, "/v1/audio/voices/ada/export", "/v1/audio/bundle", "/", "/page/app.js")


def record(generation: int, mime_type: str) -> dict[str, Any]:
    return {"name": "ada", "generation": generation, "mime_type": mime_type, "file_size": len(CLIP)}


def bundle(of: dict[str, Any]) -> bytes:
    """A bundle of one voice, as the server exports it."""
    file = save({"audio": np.frombuffer(CLIP, np.uint8)}, {"record": json.dumps(of)})
    return save({"0": np.frombuffer(file, np.uint8)})


def answers(found: dict[str, Any], exported: bytes) -> Any:
    return lambda inputs: {"result": json.dumps(found).encode(), "artifacts": exported}


@pytest.fixture
def http(shared: Shared) -> httpx2.Client:
    triton, http = shared
    ada = record(7, "audio/wav")
    triton.answer = answers(ada, bundle(ada))
    return http


@pytest.mark.parametrize(
    ("asked", "begin", "end"),
    [
        ("bytes=0-1", 0, 2),
        ("bytes=0-0", 0, 1),
        ("bytes=10-", 10, None),
        ("bytes=10-99999999999999999999", 10, None),
        ("bytes=-5", -5, None),
        ("bytes=-99999999999999999999", 0, None),
        ("Bytes= 3 - 4", None, None),
        ("bytes= 3-4", 3, 5),
        ("bytes=4-3", None, None),
        ("bytes=-", None, None),
        ("bytes=0-1,4-5", None, None),
        ("bytes=a-b", None, None),
        ("items=0-1", None, None),
        ("bytes=" + "9" * 4500 + "-", None, None),
    ],
)
@pytest.mark.parametrize("path", FILES)
def test_a_part_of_a_file(http: httpx2.Client, path: str, asked: str, begin: int | None, end: int | None) -> None:
    whole = http.get(path)
    size = len(whole.content)
    assert whole.headers["accept-ranges"] == "bytes"
    answer = http.get(path, headers={"Range": asked})
    if begin is None:
        assert (answer.status_code, answer.content) == (200, whole.content)
        return
    assert (answer.status_code, answer.content) == (206, whole.content[begin:end])
    first = begin % size
    assert answer.headers["content-range"] == f"bytes {first}-{first + len(answer.content) - 1}/{size}"
    assert answer.headers["content-type"] == whole.headers["content-type"]
    assert answer.headers["etag"] == whole.headers["etag"]


@pytest.mark.parametrize("path", FILES)
def test_a_part_that_is_not_there(http: httpx2.Client, path: str) -> None:
    size = len(http.get(path).content)
    for asked in (f"bytes={size}-", f"bytes={size + 5}-{size + 9}", "bytes=-0"):
        answer = http.get(path, headers={"Range": asked})
        assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{size}")
        assert answer.json()["error"]["code"] == "range_not_satisfiable"


@pytest.mark.parametrize("path", FILES)
def test_a_file_that_the_client_has(http: httpx2.Client, path: str) -> None:
    whole = http.get(path)
    tag = whole.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = http.get(path, headers={"If-None-Match": known, "Range": "bytes=0-1"})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    for condition, status in ((tag, 206), ('"other"', 200), (f"W/{tag}", 200), ("Sat, 29 Oct 1994 19:43:31 GMT", 200)):
        assert http.get(path, headers={"Range": "bytes=0-1", "If-Range": condition}).status_code == status


@pytest.mark.parametrize("path", FILES)
def test_head_has_no_parts(http: httpx2.Client, path: str) -> None:
    answer = http.head(path, headers={"Range": "bytes=0-1"})
    assert (answer.status_code, answer.headers["accept-ranges"]) == (200, "bytes")
    if path in (AUDIO, "/"):
        got = http.get(path)
        assert answer.headers["etag"] == got.headers["etag"]
        assert answer.headers["content-length"] == str(len(got.content))


def test_a_voice_that_is_replaced_between_two_steps(triton: Server, serve: Serve) -> None:
    triton.answer = answers(record(7, "audio/wav"), bundle(record(8, "audio/flac")))
    answer = serve(triton.url).get(AUDIO)
    assert (answer.content, answer.headers["content-type"], answer.headers["etag"]) == (CLIP, "audio/flac", '"8-100"')


@pytest.mark.parametrize(
    "exported", [save({}), Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice 'ada'")]
)
def test_a_voice_that_is_deleted_between_two_steps(triton: Server, serve: Serve, exported: Any) -> None:
    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] != b"export":
            return {"result": json.dumps(record(7, "audio/wav")).encode()}
        if isinstance(exported, Failure):
            raise exported
        return {"artifacts": exported}

    triton.answer = answer
    found = serve(triton.url).get(AUDIO)
    assert (found.status_code, found.json()["error"]["code"]) == (404, "voice_not_found")
