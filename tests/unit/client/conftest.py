"""The client and a double of Triton to talk to."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.support.triton_double import Server


@pytest.fixture
def triton() -> Iterator[Server]:
    """The double, listening on a free port."""
    servicer = Server()
    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.max_receive_message_length", -1)])  # as Triton
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    servicer.url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(grace=0).wait()
