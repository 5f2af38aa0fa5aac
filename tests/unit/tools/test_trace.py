"""What tools/inspect reads of a trace file: tensors, the arrays that are packed in one, and the spans of a speech."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from voice_clone_client.spans import first_audio_spans

from voice_clone.triton.tensors import pack
from voice_clone_server.inspect_speech import speech_spans, table
from voice_clone_server.trace import ModelRequest, read_trace

SPAN = '{{"id":{id},"model_name":"{model}","model_version":1}}'
TENSOR = (
    '{{"id":1,"activity":"TENSOR_QUEUE_INPUT","tensor":{{"name":"{name}","data":"{data}","shape":"{shape}",'
    '"dtype":"{dtype}"}}}}'
)


def test_the_arrays_in_a_packed_tensor_are_shown() -> None:
    packed = pack(
        {"codes": np.arange(12, dtype=np.uint16).reshape(4, 3), "quotes": np.frombuffer(b'","shape', np.uint8)}
    )
    data = (len(packed).to_bytes(4, "little") + packed).decode("latin-1")
    text = "\n".join(
        [
            SPAN.format(id=1, model="a_talker"),
            TENSOR.format(name="prompt", data=data, shape="1", dtype="BYTES"),
            TENSOR.format(name="info", data='{"frames": 3}', shape="1", dtype="BYTES"),
            TENSOR.format(name="ids", data="1,2", shape="2", dtype="INT32"),
        ]
    )
    [span] = read_trace(text)
    assert span.inputs["info"] == ["BYTES [1]"] and span.inputs["ids"] == ["INT32 [2]"]
    [prompt] = span.inputs["prompt"]
    assert prompt.startswith("BYTES [1] {") and "codes U16 [4, 3]" in prompt and "quotes U8 [8]" in prompt


OUTPUT = TENSOR.replace("QUEUE_INPUT", "BACKEND_OUTPUT")


def test_the_info_of_a_response_is_read() -> None:
    info = {"voice": 'é "}', "queue_ms": 1.0}
    lines = [SPAN.format(id=1, model="a_code2wav")]
    for content in (json.dumps(info, ensure_ascii=False), "", "no JSON", "[1]", "}{", "{1}"):
        written = f'\\"{content}\\"'.encode().decode("latin-1")  # as Triton 2.51 does
        lines.append(OUTPUT.format(name="info", data=written, shape="1", dtype="BYTES"))
    [request] = read_trace("\n".join(lines))
    assert request.infos == [info]


INFO = {"prompt_ms": 4.0, "queue_ms": 1.0, "prefill_ms": 20.0, "first_frame_ms": 31.0, "code2wav_first_ms": 7.0}


def speech(sent: list[int], infos: list[dict[str, Any]]) -> ModelRequest:
    """A speech that began at 1 s."""
    return ModelRequest(1, "a", None, times={"REQUEST_START": 10**9}, sent=sent, infos=infos)


def test_the_spans_of_a_speech_add_up_to_its_first_audio() -> None:
    sent = [1_050_000_000, 1_060_000_000, 1_090_000_000]
    *stages, way, frames = speech_spans(speech(sent, [INFO, {**INFO, "first_frame_ms": 32.0}]))
    assert stages == first_audio_spans(INFO) and (way.name, frames.name) == ("the way", "frames")
    assert (way.start, way.end) == (42.0, 50.0) and (frames.start, frames.end) == (50.0, 90.0)
    assert sum(span.end - span.start for span in [*stages, way]) == 50.0
    assert table([*stages, way, frames]).row_count == 8, "the first audio has a line of its own"


def test_a_trace_that_does_not_say_when_or_what() -> None:
    assert speech_spans(speech([], [INFO])) == first_audio_spans(INFO), "over HTTP nothing says when it was sent"
    assert speech_spans(speech([1_050_000_000], [])) == []
