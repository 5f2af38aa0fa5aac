"""The files of Docker Compose are brought up with the image for a CPU, and spoken through."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from voice_clone_client import Client

from tests.images.compose import Project
from tests.images.engine import Engine, image
from tests.support.waiting import until
from voice_clone_server.triton_server import ROOT, free_ports

KEY = "key-of-the-tests"
CLIP = ROOT / "tools" / "data" / "demo_clips" / "rms.wav"
OTHERS = {"prometheus": "docker.io/prom/prometheus:v3.5.0", "database": "docker.io/library/postgres:15.15"}
OTHERS["balancer"] = "docker.io/library/haproxy:2.6.12"
DASHBOARD = ROOT / "tools" / "monitoring" / "grafana" / "voice_clone.json"


def published(own: int, port: int) -> str:
    return f'ports: !override ["127.0.0.1:{own}:{port}"]'


def ours(target: str, *lines: str) -> list[str]:
    return [f"image: {image(target)}", "build: !reset null", *lines]


def call(port: int, path: str, body: dict[str, Any] | None = None, key: str = KEY) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers), timeout=300
    ) as at:
        return bytes(at.read())


def speak(port: int, voice: str) -> int:
    """The bytes of a speech."""
    return len(call(port, "/v1/audio/speech", {"input": "The key.", "voice": voice, "response_format": "pcm"}))


def speaks(port: int, voice: str) -> bool:
    """Whether the gateway reaches a server."""
    try:
        return speak(port, voice) > 10000
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return False


def asked(port: int, expression: str) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode({"query": expression})
    return list(json.loads(call(port, f"/api/v1/query?{query}"))["data"]["result"])


def test_server_gateway_and_prometheus(engine: Engine, tmp_path: Path) -> None:
    """Without a GPU. Prometheus has each metric that the dashboard asks for."""
    gateway, grpc, prometheus = free_ports(3)
    engine.have(OTHERS["prometheus"])
    services = {
        "server": ours("cpu", published(grpc, 8001)),
        "gateway": ours("gateway", published(gateway, 8080)),
        "prometheus": [f"image: {OTHERS['prometheus']}", published(prometheus, 9090)],
    }
    variables = {"CHECKPOINT": "tools/data/demo_voice"}
    with Project(engine, tmp_path, ["cpu"], services, **variables) as project:
        project.up()
        with Client(f"127.0.0.1:{grpc}") as client:
            client.upload("rms", CLIP, wait=True)
        assert speak(gateway, "rms") > 10000
        until(lambda: len(asked(prometheus, "up == 1")) == 2)
        shown = set(re.findall(r"\b(?:voice_clone|nv)_\w+", DASHBOARD.read_text(encoding="utf-8")))
        until(lambda: shown <= set(json.loads(call(prometheus, "/api/v1/label/__name__/values"))["data"]))
        [server] = project.containers("server")
        engine.call("restart", server)
        until(lambda: project.healthy(server), 300)
        until(lambda: speaks(gateway, "rms"))  # at another address, which the gateway asks for


def test_a_fleet_is_restarted_one_by_one_while_it_speaks(engine: Engine, tmp_path: Path) -> None:
    """Three servers on one database; the gateway with keys, open to other machines; gRPC through the balancer."""
    gateway, grpc = free_ports(2)
    for each in ("database", "balancer"):
        engine.have(OTHERS[each])
    services = {
        "server": ours("cpu", "deploy: {replicas: 3}"),
        "migrate": ours("cpu"),
        "gateway": ours("gateway", published(gateway, 8080)),
        "database": [f"image: {OTHERS['database']}"],
        "balancer": [f"image: {OTHERS['balancer']}", published(grpc, 8001)],
    }
    variables = {"CHECKPOINT": "tools/data/demo_voice", "DATABASE_PASSWORD": "secret"}
    variables["VOICE_CLONE_GATEWAY_API_KEYS"] = f"{KEY} speak,manage"
    with Project(engine, tmp_path, ["cpu", "fleet", "public"], services, **variables) as project:
        project.up()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            call(gateway, "/v1/audio/speech", {"input": "No.", "voice": "rms"}, key="another")
        with Client(f"127.0.0.1:{grpc}") as client:
            client.upload("rms", CLIP, wait=True)
            assert client.speak("The key.", voice="rms").read()[0].size > 5000
        over, spoken = threading.Event(), []

        def go_on() -> None:
            while not over.is_set():
                spoken.append(speak(gateway, "rms"))

        caller = threading.Thread(target=go_on)
        caller.start()
        try:
            for server in project.containers("server"):
                before = len(spoken)
                engine.call("restart", "--time=60", server)
                until(lambda server=server: project.healthy(server), 300)
                until(lambda before=before: len(spoken) > before + 1, 300)
        finally:
            over.set()
            caller.join()
        assert min(spoken) > 10000
