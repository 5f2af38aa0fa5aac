"""Bundles that are exported in parts, over HTTP; the server is a double."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import PART, Failure, Server
from tests.support.waiting import until

BUNDLE = "/v1/audio/bundle"
DATA = os.urandom(3 * PART - 5)


def asked(triton: Server) -> list[int]:
    """Where the parts begin that were asked for."""
    return [json.loads(inputs["options"]).get("offset", 0) for _, inputs in triton.asked]


def outcome(audit: Path) -> str:
    """Of the only line of the audit log."""
    until(lambda: audit.exists() and bool(audit.read_text()))
    [line] = audit.read_text().splitlines()
    code: str = json.loads(line)["outcome"]
    return code


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def http(triton: Server, serve: Serve, audit: Path) -> httpx2.Client:
    """A gateway with less memory than two bundles take."""
    triton.answer = lambda inputs: {"artifacts": DATA}
    return serve(triton.url, memory_bytes=2 * PART + (1 << 20), audit_log=str(audit))


def test_a_bundle_is_passed_on_while_it_comes(triton: Server, http: httpx2.Client, audit: Path) -> None:
    answer = http.get(BUNDLE)
    assert answer.content == DATA and answer.headers["content-length"] == str(len(DATA))
    assert asked(triton) == [0, PART, 2 * PART]
    assert len({json.loads(inputs["options"])["id"] for _, inputs in triton.asked}) == 1
    assert outcome(audit) == "ok"


@pytest.mark.parametrize(
    ("begin", "end", "offsets"),
    [
        (1, 5, [0, len(DATA)]),
        (PART - 1, PART, [0, len(DATA)]),
        (PART - 1, PART + 1, [0, PART, len(DATA)]),
        (2 * PART + 7, len(DATA), [0, 2 * PART + 7]),
        (PART + 3, PART + 4, [0, PART + 3, len(DATA)]),
    ],
)
def test_a_part_of_a_bundle(triton: Server, http: httpx2.Client, begin: int, end: int, offsets: list[int]) -> None:
    """What is not wanted does not come, and the server forgets the rest."""
    answer = http.get(BUNDLE, headers={"Range": f"bytes={begin}-{end - 1}"})
    assert (answer.status_code, answer.content) == (206, DATA[begin:end])
    until(lambda: asked(triton) == offsets)


def test_a_bundle_that_the_client_has(triton: Server, http: httpx2.Client) -> None:
    tag = http.get(BUNDLE).headers["etag"]
    triton.calls.clear()
    assert http.get(BUNDLE, headers={"If-None-Match": tag}).status_code == 304
    until(lambda: asked(triton) == [0, len(DATA)])


@pytest.mark.parametrize("at", [0, 1])
def test_a_bundle_that_cannot_go_on(triton: Server, http: httpx2.Client, audit: Path, at: int) -> None:
    """Nobody takes a part of it for all of it."""

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if len(triton.asked) > at:
            raise Failure(grpc.StatusCode.UNAVAILABLE, "overloaded: this bundle is not here any more")
        return {"artifacts": DATA}

    triton.answer = answer
    if at:
        with pytest.raises(httpx2.RemoteProtocolError):
            http.get(BUNDLE)
    else:
        assert http.get(BUNDLE).json()["error"]["code"] == "overloaded"
    assert outcome(audit) == "overloaded"


def test_a_client_that_leaves(triton: Server, http: httpx2.Client, audit: Path) -> None:
    go_on = threading.Event()

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if len(triton.asked) == 2:
            go_on.wait(20)
        return {"artifacts": DATA}

    triton.answer = answer
    with http.stream("GET", BUNDLE) as answered:
        pieces = answered.iter_raw()
        while answered.num_bytes_downloaded < PART:
            next(pieces)
        until(lambda: len(triton.asked) == 2)
    assert outcome(audit) == "client_gone"
    go_on.set()
    until(lambda: asked(triton) == [0, PART, len(DATA)])
