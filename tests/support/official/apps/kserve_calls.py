"""Calls a server by KServe's own client, and reads manifests with its models; with .venv/kserve on the path.

    python kserve_calls.py HTTP_ADDRESS GRPC_ADDRESS

Each line of stdin is a call as JSON: `by` (`rest`, `grpc` or `models`), `do`, and what that takes. Prints a line of
JSON for each: `answer`, or `error`, its text. Strings of bytes are base64.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
from typing import Any

import grpc
import httpx
import kserve
import kubernetes.client
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

KINDS = {"ServingRuntime": kserve.V1alpha1ServingRuntime, "InferenceService": kserve.V1beta1InferenceService}


def request_of(call: dict[str, Any]) -> InferRequest:
    """Inputs are one string each; `binary`: behind the JSON, not in it."""
    inputs = []
    for name, value in call["inputs"].items():
        tensor = InferInput(name, [1], "BYTES")
        tensor.set_data_from_numpy(np.array([base64.b64decode(value)], np.object_), binary_data=call["binary"])
        inputs.append(tensor)
    outputs = None
    if call["by"] == "rest" and call["binary"]:
        outputs = [RequestedOutput(name, parameters={"binary_data": True}) for name in call["outputs"]]
    return InferRequest(call["model"], inputs, request_outputs=outputs)


def strings_of(response: Any) -> dict[str, str]:
    """The outputs, which are one string each."""
    found = {}
    for output in response.outputs:
        [value] = output.as_numpy().tolist()
        found[output.name] = base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
    return found


async def by_client(call: dict[str, Any], http: str, grpc_address: str) -> Any:
    if call["by"] == "rest":
        client: Any = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60, retries=1))
        base: tuple[str, ...] = (http,)
    else:
        client, base = InferenceGRPCClient(grpc_address, retries=0), ()
    async with client:
        if call["do"] == "live":
            return await client.is_server_live(*base)
        if call["do"] == "ready":
            return await client.is_server_ready(*base)
        if call["do"] == "model_ready":
            return await client.is_model_ready(*base, call["model"])
        named = {"model_name": call["model"]} if call["by"] == "rest" else {}
        return strings_of(await client.infer(*base, request_of(call), **named))


def unknown_fields(value: Any, kind: str, path: str) -> list[str]:
    """Fields that a model does not know, and values of other types than it says."""
    if kind.startswith("list["):
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [fault for at, each in enumerate(value) for fault in unknown_fields(each, kind[5:-1], f"{path}[{at}]")]
    if kind.startswith("dict("):
        if not isinstance(value, dict):
            return [f"{path} is no mapping"]
        inner = kind[5:-1].split(", ")[1]
        return [fault for name, each in value.items() for fault in unknown_fields(each, inner, f"{path}.{name}")]
    model = getattr(kserve, kind, None) or getattr(kubernetes.client, kind, None)
    if model is None:
        plain = {"str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}.get(kind, (object,))
        return [] if isinstance(value, plain) else [f"{path} is no {kind}"]
    if not isinstance(value, dict):
        return [f"{path} is no {kind}"]
    names = {shown: name for name, shown in model.attribute_map.items()}
    faults = [f"{path}.{name} is unknown" for name in value if name not in names]
    for name in set(value) & set(names):
        faults += unknown_fields(value[name], model.openapi_types[names[name]], f"{path}.{name}")
    return faults


def answer(call: dict[str, Any]) -> dict[str, Any]:
    try:
        if call["by"] == "models":
            manifest = call["manifest"]
            return {"answer": unknown_fields(manifest, KINDS[manifest["kind"]].__name__, manifest["kind"])}
        return {"answer": asyncio.run(by_client(call, sys.argv[1], sys.argv[2]))}
    except grpc.RpcError as error:
        return {"error": f"{error.code().name}: {error.details()}"}
    except httpx.HTTPStatusError as error:
        return {"error": f"{error.response.status_code}: {error.response.text}"}  # its own text is for JSON alone


logging.disable()  # the client logs each error with its traceback, too
for line in sys.stdin:
    sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
    sys.stdout.flush()
