"""Reads Triton's trace files: which models a request went through, when, with which tensors, and what they reported.

A trace file is a list of records; each names a request by `id` and adds its model and parent, a point in time, or a
tensor. With level TENSORS Triton 2.51 writes the tensors' bytes unescaped, so the file is not valid JSON, and this
module finds the records by their pattern. Triton does not trace the calls that a model makes (BLS).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_MODEL = re.compile(r'\{"id":(\d+),"model_name":"([^"]+)","model_version":-?\d+[^{}]*?(?:"parent_id":(\d+))?\}')
_TIME = re.compile(r'\{"id":(\d+),"timestamps":\[\{"name":"([A-Z_]+)","ns":(\d+)\}\]\}')
_TENSOR = re.compile(
    r'\{"id":(\d+),"activity":"TENSOR_(QUEUE_INPUT|BACKEND_OUTPUT)","tensor":\{"name":"([^"]+)","data":"(.*?)"'
    r',"shape":"([\d,]*)","dtype":"(\w+)"\}\}',
    re.DOTALL,
)
# The header of safetensors bytes: the JSON of each array in them.
_HEADER = re.compile(r'\{"\w+":\{"dtype":"\w+","shape":\[[\d,]*\],"data_offsets":\[\d+,\d+\]\}.*?\}\}')
_ARRAY = re.compile(r'"(\w+)":\{"dtype":"(\w+)","shape":\[([\d,]*)\]')


@dataclass
class ModelRequest:
    """One request at one model.

    Attributes:
        parent: the id of the ensemble's request that it is a step of.
        times: nanoseconds on the server's clock by the name of the point; of a repeated point the first.
        ended: the last point of all.
        sent: when responses went out over gRPC.
        inputs, outputs: name -> `TYPE [shape]` of each tensor of that name; a stream has outputs in every response.
        infos: the JSON objects among its outputs `info`, as they came.
    """

    id: int
    model: str
    parent: int | None
    times: dict[str, int] = field(default_factory=dict)
    ended: int = 0
    sent: list[int] = field(default_factory=list)
    inputs: dict[str, list[str]] = field(default_factory=dict)
    outputs: dict[str, list[str]] = field(default_factory=dict)
    infos: list[dict[str, Any]] = field(default_factory=list)

    @property
    def began(self) -> int:
        """Nanoseconds."""
        return self.times.get("REQUEST_START", self.ended)

    def between(self, start: str, end: str) -> float | None:
        """Milliseconds from one point to another; None where the request has not both."""
        if start not in self.times or end not in self.times:
            return None
        return max(0.0, (self.times[end] - self.times[start]) / 1e6)


def _packed(data: str) -> str:
    """The arrays that are packed in a tensor's bytes, ` {name TYPE [shape], ...}`; empty if there are none."""
    header = _HEADER.search(data)
    if header is None:
        return ""
    arrays = (f"{name} {kind} [{shape.replace(',', ', ')}]" for name, kind, shape in _ARRAY.findall(header[0]))
    return f" {{{', '.join(arrays)}}}"


def _objects(data: str) -> list[dict[str, Any]]:
    """The JSON object in a string tensor, between the quotes that Triton writes; none if there is no such."""
    begin, end = data.find("{"), data.rfind("}") + 1
    try:
        return [json.loads(data[begin:end].encode("latin-1"))]
    except ValueError:
        return []


def read_trace(text: str) -> list[ModelRequest]:
    """The requests of a trace file, read as Latin-1, in the order in which they began."""
    requests = {
        int(found[1]): ModelRequest(int(found[1]), found[2], int(found[3]) if found[3] else None)
        for found in _MODEL.finditer(text)
    }
    for found in _TIME.finditer(text):
        request = requests.get(int(found[1]))
        if request is not None:
            request.times.setdefault(found[2], int(found[3]))
            request.ended = max(request.ended, int(found[3]))
            if found[2] == "GRPC_SEND_START":
                request.sent.append(int(found[3]))
    for found in _TENSOR.finditer(text):
        request = requests.get(int(found[1]))
        if request is None:
            continue
        described = f"{found[6]} [{found[5].replace(',', ', ')}]{_packed(found[4]) if found[6] == 'BYTES' else ''}"
        output = found[2] == "BACKEND_OUTPUT"
        (request.outputs if output else request.inputs).setdefault(found[3], []).append(described)
        if output and found[3] == "info":
            request.infos += _objects(found[4])
    return sorted(requests.values(), key=lambda request: request.began)
