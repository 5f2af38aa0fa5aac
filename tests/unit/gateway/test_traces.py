"""Traces of speeches: what a collector receives over OTLP, on a double of the speech server."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import httpx2
import pytest
from voice_clone_gateway import traces
from voice_clone_gateway.app import create_app
from voice_clone_gateway.settings import parse
from voice_clone_gateway.traces import SpeechTrace

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import Failure, Server, chunk
from tests.support.official.otlp_collector import Collector
from tests.support.waiting import until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
BODY = {"input": "Hello there.", "voice": "ada", "response_format": "pcm"}
NAME_OR_TEXT = re.compile(r"\b(?:ada|Hello)\b")  # as a word: the id of a request may hold the letters
FIRST = {
    "mode": "icl",
    "cache": "miss",
    "prompt_ms": 54.0,
    "encoder_ms": 50.0,
    "queue_ms": 1.0,
    "prefill_ms": 20.0,
    "first_frame_ms": 31.0,
    "first_chunk_ms": 33.0,
}
STAGES = {
    "prompt": 4.0,
    "encoder": 50.0,
    "queue": 1.0,
    "prefill": 20.0,
    "first frame": 10.0,
    "first chunk": 2.0,
    "code2wav": 7.0,
}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with Collector() as found:
        yield found


def play(context: Any) -> Iterator[Any]:
    yield chunk(0, info={**FIRST, "code2wav_first_ms": 7.0})
    yield chunk(1, final=True, info={**FIRST, "frames": 2, "talker_ms": 90.0, "code2wav_ms": 12.0})


def milliseconds(span: Any) -> float:
    return float(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6


def test_a_speech_is_one_trace_from_the_caller_to_the_server(
    triton: Server, serve: Serve, collector: Collector
) -> None:
    triton.play = play
    answer = serve(triton.url, otlp_endpoint=collector.url).post("/v1/audio/speech", json=BODY, headers=GIVEN)
    assert answer.status_code == 200
    until(lambda: "POST /v1/audio/speech" in collector.by_name())
    spans = collector.by_name()
    assert set(spans) == {"POST /v1/audio/speech", "first audio", "frames", *STAGES}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    root, first = spans["POST /v1/audio/speech"], spans["first audio"]
    assert root.parent_span_id.hex() == PARENT
    assert {spans[name].parent_span_id for name in ("first audio", "frames")} == {root.span_id}
    assert {spans[name].parent_span_id for name in STAGES} == {first.span_id}
    own = f"00-{TRACE}-{root.span_id.hex()}-01"
    assert answer.headers["traceparent"] == own and triton.metadata[-1]["traceparent"] == own

    assert {name: round(milliseconds(spans[name]), 3) for name in STAGES} == STAGES
    begun = [spans[name].start_time_unix_nano for name in STAGES]
    assert begun == sorted(begun) and abs(begun[0] - first.start_time_unix_nano) < 1e6
    assert root.start_time_unix_nano <= first.start_time_unix_nano
    assert spans["frames"].end_time_unix_nano <= root.end_time_unix_nano

    said = {each.key: each.value.string_value for span in spans.values() for each in span.attributes}
    assert said["voice_clone.request_id"] == answer.headers["x-request-id"]
    assert (said["voice_clone.cache"], said["voice_clone.finish_reason"]) == ("miss", "stop")
    assert not any(NAME_OR_TEXT.search(value) for value in said.values()), "no names, no texts"


def test_a_failed_speech_says_why(triton: Server, serve: Serve, collector: Collector) -> None:
    def fails(context: Any) -> Iterator[Any]:
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice is registered under the name 'ada'")

    triton.play = fails
    http_client = serve(triton.url, otlp_endpoint=collector.url)
    assert http_client.post("/v1/audio/speech", json=BODY).status_code == 404
    until(lambda: collector.spans)
    [root] = collector.spans
    assert root.status.message == "voice_not_found" and not root.parent_span_id
    assert not any(NAME_OR_TEXT.search(str(each)) for each in [*root.attributes, *root.events])


def test_without_an_endpoint_there_is_none(triton: Server, serve: Serve) -> None:
    triton.play = play
    answer = serve(triton.url).post("/v1/audio/speech", json=BODY, headers=GIVEN)
    assert "traceparent" not in answer.headers and "traceparent" not in triton.metadata[-1]
    trace = SpeechTrace()
    trace.asked()
    trace.first_audio(FIRST)
    trace.end(FIRST, 1.0)
    assert trace.headers == {}


def test_a_collector_that_is_not_there_harms_no_speech(triton: Server, serve: Serve, collector: Collector) -> None:
    collector.close()
    http_client: httpx2.Client = serve(triton.url, otlp_endpoint=collector.url)
    assert http_client.post("/v1/audio/speech", json=BODY).status_code == 200


def test_without_the_package_the_option_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ValueError, match=r"pip install ./client './gateway\[traces\]'"):
        create_app(parse(["--otlp-endpoint", "http://localhost:4318/v1/traces"]))


@pytest.mark.parametrize("listening", [True, False])
def test_a_collector_that_takes_nothing_holds_no_one_up(
    listening: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that never answers, and one that refuses the connection, after which its client tries again and again."""
    monkeypatch.setattr(traces, "CLOSE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if not listening:
            silent.close()
        made = traces.Traces(f"http://127.0.0.1:{silent.getsockname()[1] if listening else 9}/v1/traces")
        with made.speech("POST /v1/audio/speech", {}, 0.0, "id"):
            pass
        made.close()
    assert "were not sent" in caplog.text
