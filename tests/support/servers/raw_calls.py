"""Calls of models that the client itself does not make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from tritonclient.grpc import InferResult, service_pb2_grpc
from voice_clone_client import requests

from tests.support.waiting import WAIT


def infer(url: str, model: str, inputs: Mapping[str, Any], **parameters: str) -> InferResult:
    """The answer of a model to inputs and request parameters. Raises: grpc.RpcError."""
    request = requests.infer(model, inputs)
    for name, value in parameters.items():
        request.parameters[name].string_param = value
    with grpc.insecure_channel(url) as channel:
        return InferResult(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=WAIT))
