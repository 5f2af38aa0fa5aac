"""What tools/inspect reads of a trace file: tensors, and the arrays that are packed in one."""

from __future__ import annotations

import numpy as np

from tools.trace import read_trace
from voice_clone.triton.tensors import pack

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
