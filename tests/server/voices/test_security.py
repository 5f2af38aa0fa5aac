"""A server in an open network: gRPC is TLS, management needs a key, and changing or exporting voices needs a token."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx2
import numpy as np
import pytest
import trustme
from tritonclient.grpc import service_pb2, service_pb2_grpc
from voice_clone_client import Client, ConnectionFailed, PermissionDenied, VoiceNotFound, tls_credentials
from voice_clone_command import cli

from perf.bench.gateway_process import Gateway
from tests.support.families.factories import CheckpointFactory
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough

TOKEN, KEY = "token-that-changes-voices", "key-that-manages"
MANAGEMENT = "model-repository,model-config,shared-memory,statistics,trace,logging"
EMBEDDING = np.random.default_rng(0).normal(size=64).astype(np.float32)
FRAME = 1920  # samples

Action = Callable[[Client], object]
CHANGES: dict[str, Action] = {
    "upload": lambda client: client.upload("Ada", speaker_embedding=-EMBEDDING, replace=True),
    "delete": lambda client: client.delete("Ada"),
    "prepare": lambda client: client.prepare("Ada", force=True),
    "export": lambda client: client.export(),
    "import": lambda client: client.import_(b"a bundle"),
}


@dataclass(frozen=True)
class Guarded:
    """The server, and its authority's certificate."""

    server: TritonServer
    ca: str

    def client(self, token: str | None = None) -> Client:
        return Client(self.server.url, credentials=tls_credentials(self.ca), token=token)

    def http(self, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        """Status and body of an HTTP request."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.server.http}/{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=30.0) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture(scope="module")
def guarded(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "server.key"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    server = TritonServer(
        checkpoint_folder("tiny", 0),
        folder / "voices",
        log=folder / "log",
        environment={"VOICE_CLONE_WRITE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"},
        options=[
            "--log-verbose=1",
            "--grpc-use-ssl=true",
            f"--grpc-server-cert={folder / 'server.pem'}",
            f"--grpc-server-key={folder / 'server.key'}",
            f"--http-restricted-api={MANAGEMENT}:admin-key={KEY}",
            f"--grpc-restricted-protocol={MANAGEMENT}:admin-key={KEY}",
        ],
    )
    with server:
        yield Guarded(server, str(folder / "ca.pem"))
        assert server.ready()
    text = (folder / "log").read_text()
    assert TOKEN not in text and KEY not in text, "not even in a verbose log"


@pytest.fixture
def voice(guarded: Guarded) -> str:
    """A registered voice, which is the same before each test."""
    with guarded.client(TOKEN) as client:
        client.upload("Ada", speaker_embedding=EMBEDDING, replace=True)
    return "Ada"


def test_speech_wants_neither_key_nor_token(guarded: Guarded, voice: str) -> None:
    with guarded.client() as client:
        samples, _ = client.speak("Good morning.", voice=voice, max_frames=2).read()
        assert len(samples) == 2 * FRAME
        samples, _ = client.speak("Good morning.", speaker_embedding=EMBEDDING, max_frames=2).read()
        assert len(samples) == 2 * FRAME
        assert [each.name for each in client.list()] == [voice] and client.get(voice).name == voice
        assert client.ready() and client.stats()
        assert client.prepare(voice).name == voice


@pytest.mark.parametrize("token", [None, "another", TOKEN + "x"])
@pytest.mark.parametrize("operation", CHANGES)
def test_operations_that_change_or_export_voices_need_the_token(
    guarded: Guarded, voice: str, operation: str, token: str | None
) -> None:
    with guarded.client(token) as client:
        with pytest.raises(PermissionDenied, match=f"^{operation} needs the server's write token") as caught:
            CHANGES[operation](client)
        assert TOKEN not in str(caught.value)
        np.testing.assert_array_equal(client.speaker_embedding(voice), EMBEDDING)


def test_all_operations_work_with_the_token(guarded: Guarded, voice: str, reference_clip: bytes) -> None:
    with guarded.client(TOKEN) as client:
        client.upload(voice, reference_clip, wait=True, replace=True)
        bundle = client.export(voice)
        assert client.prepare(voice, force=True).name == voice
        client.delete(voice)
        with pytest.raises(VoiceNotFound):
            client.get(voice)
        assert [each.name for each in client.import_(bundle)] == [voice]


def http_inputs(operation: str, name: str) -> dict[str, Any]:
    given = {"operation": operation, "name": name}
    return {
        "inputs": [{"name": key, "shape": [1], "datatype": "BYTES", "data": [given[key]]} for key in given],
        "outputs": [{"name": "result"}],
    }


def test_the_token_over_http(guarded: Guarded, voice: str) -> None:
    """In the header, however its name is written; `generate` of Triton 2.51 forwards none, but takes it in the body."""
    infer, generate = "v2/models/speaker_cache/infer", "v2/models/speaker_cache/generate"
    for header in ({}, {"x-voice-token": "another"}):
        status, body = guarded.http(infer, http_inputs("delete", voice), **header)
        assert status == 400 and "permission_denied: delete needs" in body
    status, body = guarded.http(generate, {"operation": "delete", "name": voice})
    assert status == 400 and "permission_denied: delete needs" in body
    for header in ({"x-voice-token": TOKEN}, {"X-VOICE-TOKEN": TOKEN}):
        status, body = guarded.http(infer, http_inputs("export", voice), **header)
        assert status == 200 and voice in body
    status, body = guarded.http(generate, {"operation": "delete", "name": voice, "x-voice-token": TOKEN})
    assert status == 200 and "deleted" in body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("v2/repository/index", {}),
        ("v2/models/speaker_cache/config", None),
        ("v2/models/stats", None),
        ("v2/trace/setting", None),
        ("v2/logging", None),
        ("v2/systemsharedmemory/status", None),
    ],
)
def test_management_over_http_wants_the_key(guarded: Guarded, path: str, body: Any) -> None:
    for headers in ({}, {"admin-key": "another"}):
        assert guarded.http(path, body, **headers)[0] == 403
    status, answer = guarded.http(path, body, **{"admin-key": KEY})
    assert status == 200 and TOKEN not in answer


@pytest.mark.parametrize(
    ("method", "request_type"),
    [
        ("RepositoryIndex", "RepositoryIndexRequest"),
        ("ModelStatistics", "ModelStatisticsRequest"),
        ("TraceSetting", "TraceSettingRequest"),
        ("LogSettings", "LogSettingsRequest"),
        ("SystemSharedMemoryStatus", "SystemSharedMemoryStatusRequest"),
    ],
)
def test_management_over_grpc_wants_the_key(guarded: Guarded, method: str, request_type: str) -> None:
    with grpc.secure_channel(guarded.server.url, tls_credentials(guarded.ca)) as channel:
        call = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), method)
        request = getattr(service_pb2, request_type)()
        for key in ("", "another"):
            with pytest.raises(grpc.RpcError) as caught:
                call(request, metadata=(("triton-grpc-protocol-admin-key", key),), timeout=30.0)
            assert "This protocol is restricted" in caught.value.details()
        call(request, metadata=(("triton-grpc-protocol-admin-key", KEY),), timeout=30.0)


def test_only_tls_to_the_right_authority_connects(guarded: Guarded, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    for credentials in (None, tls_credentials(str(other)), tls_credentials()):
        with Client(guarded.server.url, credentials=credentials, timeout=10.0) as client:
            with pytest.raises(ConnectionFailed, match="is TLS on at both ends or at none"):
                client.list()
            with pytest.raises(ConnectionFailed, match="is TLS on at both ends or at none"):
                client.speak("Hello.", speaker_embedding=EMBEDDING, deadline=10.0).read()


def test_the_command_line(
    guarded: Guarded, voice: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ["--url", guarded.server.url, "--timeout", "10"]
    assert cli.main([*there, "--ca", guarded.ca, "list"]) == 0
    assert capsys.readouterr().out.startswith(voice)
    assert cli.main([*there, "--tls", "list"]) == 1  # gRPC does not trust the authority of this test
    assert capsys.readouterr().err.startswith("voice-clone: connection_failed: ")
    assert cli.main([*there, "--ca", guarded.ca, "delete", voice]) == 1
    assert capsys.readouterr().err.startswith("voice-clone: permission_denied: delete needs the server's write token")
    monkeypatch.setenv("VOICE_CLONE_TOKEN", TOKEN)
    assert cli.main([*there, "--ca", guarded.ca, "delete", voice]) == 0


def http_of(gateway: Gateway) -> httpx2.Client:
    return httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False)


def test_the_gateway(guarded: Guarded, voice: str, tmp_path: Path) -> None:
    """Its callers need no token: what they may do is up to its own keys."""
    speech = {"input": "Good morning.", "voice": voice, "max_new_tokens": 2, "response_format": "pcm"}
    options = ("--triton-ca", guarded.ca)
    log = tmp_path / "log"
    with Gateway(guarded.server.url, log, *options) as gateway, http_of(gateway) as http:
        assert len(http.post("/v1/audio/speech", json=speech).content) == 2 * 2 * FRAME
        refused = http.delete(f"/v1/audio/voices/{voice}")
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "permission_denied"
    with (
        Gateway(guarded.server.url, log, *options, VOICE_CLONE_GATEWAY_TRITON_TOKEN=TOKEN) as gateway,
        http_of(gateway) as http,
    ):
        assert http.delete(f"/v1/audio/voices/{voice}").status_code == 200
        assert http.get("/v1/audio/voices").json()["voices"] == []
    assert TOKEN not in log.read_text()
