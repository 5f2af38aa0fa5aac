"""Cartesia's official client against a real server."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import soundfile
from cartesia import Cartesia, NotFoundError

from perf.bench.gateway_process import Gateway

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.share("servers"),
    pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning"),  # by Cartesia's client
]
RAW: dict[str, Any] = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}


@pytest.fixture
def cartesia(lenient_gateway: Gateway) -> Iterator[Cartesia]:
    url = lenient_gateway.url
    sockets = url.replace("http", "ws")
    with Cartesia(api_key="unused", base_url=url, websocket_base_url=sockets, max_retries=0) as client:
        yield client


def test_a_clone_speaks(cartesia: Cartesia, reference_clip: bytes) -> None:
    made = cartesia.voices.clone(clip=("clip.wav", reference_clip), name="Ann from Cartesia", language="en")
    assert made.id in {each.id for each in cartesia.voices.list(q="ann from")}
    speech: dict[str, Any] = {"model_id": "sonic-3", "voice": {"mode": "id", "id": made.id}}
    wav = {"container": "wav", "encoding": "pcm_f32le", "sample_rate": 44100}
    heard = cartesia.tts.generate(transcript="Good morning.", **speech, output_format=wav).read()  # type: ignore[arg-type]
    samples, rate = soundfile.read(io.BytesIO(heard))
    assert rate == 44100 and len(samples) > rate / 2
    *_, last = cartesia.tts.generate_sse(transcript="Good morning.", **speech, output_format=RAW)  # type: ignore[arg-type]
    assert last.type == "done"
    with cartesia.tts.websocket_connect() as connection:
        context = connection.context(**speech, output_format=RAW)
        for text in ("Good morning, ", "all of you."):
            context.push(text)
        context.no_more_inputs()
        events = [*context.receive()]
    assert events[-1].type == "done" and any(event.type == "chunk" for event in events)
    cartesia.voices.delete(made.id)
    with pytest.raises(NotFoundError):
        cartesia.voices.get(made.id)
