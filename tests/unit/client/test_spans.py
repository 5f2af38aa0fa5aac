"""The stages until the first audio, as spans of what a server reports."""

from __future__ import annotations

import pytest
from voice_clone_client.spans import Span, first_audio_spans

HIT = {"prompt_ms": 4.0, "queue_ms": 1.0, "prefill_ms": 20.0, "first_frame_ms": 31.0, "code2wav_first_ms": 7.0}


def test_stages_follow_each_other() -> None:
    assert first_audio_spans(HIT) == [
        Span("prompt", 0.0, 4.0),
        Span("queue", 4.0, 5.0),
        Span("prefill", 5.0, 25.0),
        Span("first frame", 25.0, 35.0),
        Span("code2wav", 35.0, 42.0),
    ]


def test_the_encoder_of_a_cold_voice_is_not_counted_twice() -> None:
    spans = first_audio_spans({**HIT, "prompt_ms": 104.0, "encoder_ms": 100.0})
    assert spans[:3] == [Span("prompt", 0.0, 4.0), Span("encoder", 4.0, 104.0), Span("queue", 104.0, 105.0)]
    assert spans[-1].end == 142.0


@pytest.mark.parametrize(
    "more, name, milliseconds",
    [
        ({"first_chunk_ms": 331.0}, "first chunk", 300.0),  # of several frames
        ({"text_wait_ms": 250.0}, "text", 250.0),
    ],
)
def test_stages_that_few_speeches_have(more: dict[str, float], name: str, milliseconds: float) -> None:
    spans = first_audio_spans({**HIT, **more})
    [span] = [span for span in spans if span.name == name]
    assert span.end - span.start == milliseconds and spans[-1].end == 42.0 + milliseconds
    assert [one.end for one in spans[:-1]] == [next_one.start for next_one in spans[1:]]


def test_what_took_no_time_or_is_not_reported_is_left_out() -> None:
    assert first_audio_spans({}) == []
    assert first_audio_spans({**HIT, "queue_ms": 0.0, "first_chunk_ms": 31.0})[1].name == "prefill"
