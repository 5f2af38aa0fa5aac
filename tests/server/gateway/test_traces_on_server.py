"""One trace of a speech, by the gateway and by Triton itself."""

from __future__ import annotations

import base64
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.support.families.factories import CheckpointFactory
from tests.support.official.chromium import chromium
from tests.support.official.otlp_collector import Collector
from tests.support.servers.running import SETTINGS
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("families")]

# Triton 2.51 does not take the trace of every caller (fault: lost-trace), so a speech is asked for until its trace is
# whole, at most so many times. It writes its spans in batches, so each trace has some seconds to come.
TIMES = 12
SECONDS_OF_A_TRACE = 8.0
PARENT = "b7ad6b7169203331"
MODELS = [f"qwen3_tts{stage}" for stage in ("", "_prompt", "_talker", "_code2wav")]
ROOT, TRITON = "POST /v1/audio/speech", "triton-inference-server"


def milliseconds(span: Any) -> float:
    return float(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6


def below(span: Any, spans: Sequence[Any]) -> list[Any]:
    """The spans of which this one is a parent, or a parent's parent."""
    own = [each for each in spans if each.parent_span_id == span.span_id]
    return [*own, *(further for each in own for further in below(each, spans))]


def is_whole(spans: Sequence[Any]) -> bool:
    """Whether Triton's spans of the models stand below the gateway's own."""
    wanted = {"first audio", "frames", *MODELS}
    return any(wanted <= {span.name for span in below(root, spans)} for root in spans if root.name == ROOT)


def test_gateway_and_triton_fill_one_trace(
    checkpoint_folder: CheckpointFactory, reference_clip: bytes, reference_text: str, tmp_path: Path
) -> None:
    with Collector() as collector:
        options = ["mode=opentelemetry", "rate=1", "level=TIMESTAMPS", f"opentelemetry,url={collector.url}"]
        given = [f"--trace-config={option}" for option in options]
        checkpoint = checkpoint_folder("tiny", 0)
        with (
            TritonServer(
                checkpoint, tmp_path / "v", log=tmp_path / "log", options=given, environment=SETTINGS
            ) as server,
            Gateway(server.url, tmp_path / "gateway", "--otlp-endpoint", collector.url) as gateway,
            Client(server.url) as client,
            httpx2.Client(base_url=gateway.url, timeout=60, trust_env=False) as http,
        ):
            client.upload("Ada", reference_clip, reference_text=reference_text, wait=True)
            body = {"input": "Good morning.", "response_format": "pcm", "max_new_tokens": 40, "seed": 1}
            clip = f"data:audio/wav;base64,{base64.b64encode(reference_clip).decode()}"
            cold = {"reference_audio": clip, "reference_text": reference_text, "cache": False}
            traces = (f"{number:032x}" for number in itertools.count(1))

            def whole_trace(asked: dict[str, Any]) -> list[Any]:
                """The spans of a speech: those of the gateway and of Triton, and those between them."""
                seen = []
                for trace in itertools.islice(traces, TIMES):
                    headers = {"traceparent": f"00-{trace}-{PARENT}-01"}
                    answer = http.post("/v1/audio/speech", json=asked, headers=headers)
                    assert answer.status_code == 200, answer.text
                    deadline = time.monotonic() + SECONDS_OF_A_TRACE
                    while time.monotonic() < deadline:
                        spans = [span for span in list(collector.spans) if span.trace_id.hex() == trace]
                        if is_whole(spans):
                            return spans
                        time.sleep(0.1)
                    seen.append(sorted(span.name for span in spans))
                pytest.fail(f"no trace of {TIMES} is whole; their spans: {seen}")

            assert http.post("/v1/audio/speech", json={**body, "voice": "Ada"}).status_code == 200, "it warms up"
            found, cold_spans = whole_trace({**body, "voice": "Ada"}), whole_trace({**body, **cold})
        [root] = [span for span in found if span.name == ROOT]
        assert root.parent_span_id.hex() == PARENT

        spans = below(root, found)
        names = {span.name for span in spans}
        assert {"first audio", "prompt", "prefill", "first frame", "code2wav", "frames"} <= names
        by_triton = {span.name for span in spans if collector.services[span.span_id] == TRITON}
        assert by_triton.issuperset(MODELS)
        assert "encoder" not in names
        for each in (spans, cold_spans):
            [first] = [span for span in each if span.name == "first audio"]
            stages = [span for span in each if span.parent_span_id == first.span_id]
            assert 0 < sum(map(milliseconds, stages)) <= milliseconds(first), "they are parts of it"
        cold_stages = [span.name for span in sorted(stages, key=lambda span: span.start_time_unix_nano)]
        assert cold_stages == ["prompt", "encoder", "queue", "prefill", "first frame", "code2wav"]
        encoders = [span for span in cold_spans if span.name in ("encoder", "qwen3_tts_prompt")]
        own, whole = sorted(map(milliseconds, encoders))
        assert 0 < own < whole, "Triton's span of the prompt has the encoder's time in it"
        if folder := os.environ.get("SHOTS"):
            draw([root, *spans], collector.services, Path(folder) / "trace.png")


def draw(spans: list[Any], services: dict[bytes, str], file: Path) -> None:
    """A picture of a trace, to look at: the gateway's spans in blue, Triton's in orange."""
    begin = min(span.start_time_unix_nano for span in spans)
    ordered = sorted(spans, key=lambda span: (services[span.span_id] == TRITON, span.start_time_unix_nano))
    scale = 900 / max((span.end_time_unix_nano - begin) / 1e6 for span in spans)
    rows = []
    for row, span in enumerate(ordered):
        left, y = (span.start_time_unix_nano - begin) / 1e6 * scale, 22 * row + 4
        color = "#f3b27a" if services[span.span_id] == TRITON else "#8fb4dc"
        rows.append(
            f"<rect x='{left}' y='{y}' width='{max(1.0, milliseconds(span) * scale)}' height='18' fill='{color}'/>"
        )
        label = f"{span.name} {milliseconds(span):.1f} ms"
        rows.append(f"<text x='{left + 4}' y='{y + 13}' font-size='12' font-family='sans-serif'>{label}</text>")
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='1150' height='{22 * len(rows) // 2 + 8}'>{''.join(rows)}</svg>"
    )
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1170, "height": 11 * len(rows) + 30})
        page.set_content(svg)
        page.screenshot(path=file)
