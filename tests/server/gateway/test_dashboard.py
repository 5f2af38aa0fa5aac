"""The dashboard's queries, asked of a real Prometheus that watches a real server and a real gateway."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI

from tests.support.gateway_process import Gateway
from tools.triton_server import ROOT, TritonServer, free_ports

PROMETHEUS = shutil.which("prometheus")
MONITORING = ROOT / "tools" / "monitoring"
PANELS = json.loads((MONITORING / "grafana" / "voice_clone.json").read_text(encoding="utf-8"))["panels"]
QUERIES = {
    f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel.get("targets", [])
}

pytestmark = pytest.mark.skipif(
    PROMETHEUS is None, reason="no Prometheus on this machine (Debian: apt-get install prometheus)"
)


@pytest.fixture(scope="module")
def prometheus(
    server: TritonServer, gateway: Gateway, voice: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Address of a Prometheus that has watched some speeches."""
    folder = tmp_path_factory.mktemp("prometheus")
    config: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"]["scrape_interval"] = "250ms"
    targets = {"triton": f"127.0.0.1:{server.metrics_port}", "gateway": gateway.url.removeprefix("http://")}
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    [port] = free_ports(1)
    command = [
        str(PROMETHEUS),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log, OpenAI(base_url=f"{gateway.url}/v1", api_key="unused") as client:
        running = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            wait_until_watching(address, folder / "log")
            for _ in range(4):
                with client.audio.speech.with_streaming_response.create(
                    model="qwen3_tts", voice=voice, input="Good morning.", extra_body={"max_new_tokens": 6}
                ) as speech:
                    speech.read()
                time.sleep(0.6)
            yield address
        finally:
            running.terminate()
            running.wait(20)


def wait_until_watching(address: str, log: Path) -> None:
    for _ in range(150):
        try:
            if len(query(address, "up == 1")) == 2 and len(query(address, "count_over_time(up[10s]) > 1")) == 2:
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.2)
    raise AssertionError(log.read_text())


def query(address: str, expression: str) -> list[dict[str, Any]]:
    escaped = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{address}/api/v1/query?{escaped}", timeout=10) as answer:
        return list(json.load(answer)["data"]["result"])


@pytest.mark.parametrize("name", QUERIES)
def test_a_panel_has_data(prometheus: str, name: str) -> None:
    found = query(prometheus, QUERIES[name].replace("$__rate_interval", "1m"))
    values = [float(series["value"][1]) for series in found]
    assert values, QUERIES[name]
    assert name.startswith("Extraction ") or not any(math.isnan(value) for value in values), QUERIES[name]
