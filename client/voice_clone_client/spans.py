"""Where the time until the first audio of a speech went: the stages that the server reports in `info`, as named spans.

They follow each other:

    prompt       the tokens of the text, and the voice: from memory or from its file
    encoder      the artifacts of a voice that were nowhere yet (`cache` is `miss`), made of its clip
    queue        until the talker has a slot
    prefill      the talker reads the prompt
    text         it waits for text that is appended
    first frame  it makes a frame
    first chunk  it makes the other frames of the first chunk, in families whose first chunk has more than one
    code2wav     these frames become samples

The rest of the time until the first audio is transport: requests and tensors between the models, and the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Span(NamedTuple):
    """A stage of a speech."""

    name: str
    start: float
    """Milliseconds since the beginning of the first stage."""
    end: float
    """Likewise."""


def first_audio_spans(info: Mapping[str, Any]) -> list[Span]:
    """The stages until the first audio; those that took no time are left out.

    Args:
        info: of the first chunk.
    """

    def spent(name: str, default: float = 0.0) -> float:
        return float(info.get(name, default))

    encoder, queue, prefill, frame = map(spent, ("encoder_ms", "queue_ms", "prefill_ms", "first_frame_ms"))
    stages = (
        ("prompt", spent("prompt_ms") - encoder),
        ("encoder", encoder),
        ("queue", queue),
        ("prefill", prefill),
        ("text", spent("text_wait_ms")),
        ("first frame", frame - queue - prefill),
        ("first chunk", spent("first_chunk_ms", frame) - frame),
        ("code2wav", spent("code2wav_first_ms")),
    )
    spans, at = list[Span](), 0.0
    for name, milliseconds in stages:
        if milliseconds > 0.0:
            spans.append(Span(name, at, at + milliseconds))
            at += milliseconds
    return spans
