"""The dashboard's queries, asked of a real Prometheus that watches a real server and a real gateway."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI

from perf.bench.gateway_process import Gateway
from tests.support.waiting import WAIT, until
from voice_clone_server.triton_server import ROOT, TritonServer, free_ports

PROMETHEUS = shutil.which("prometheus")
MONITORING = ROOT / "tools" / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana" / "voice_clone.json").read_text(encoding="utf-8"))
PANELS = DASHBOARD["panels"]
[VARIABLE] = DASHBOARD["templating"]["list"]
QUERIES = {
    f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel.get("targets", [])
}

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.share("servers"),
    pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus on this machine (Debian: apt-get install prometheus)"),
]


@pytest.fixture(scope="module")
def prometheus(
    server: TritonServer, gateway: Gateway, voice: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Address of a Prometheus that has watched some speeches."""
    folder = tmp_path_factory.mktemp("prometheus")
    config: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"]["scrape_interval"] = "1s"  # within which a page must be read, too
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
                before = looks(address)
                until(
                    lambda before=before: all(now > then + 1 for now, then in zip(looks(address), before, strict=True))
                )
            yield address
        finally:
            running.terminate()
            running.wait(WAIT)


def looks(address: str) -> list[float]:
    """How often the two pages were asked for. The next but one begins after what was done before."""
    found = query(address, "count_over_time(up[1h])")
    return [float(series["value"][1]) for series in sorted(found, key=lambda series: str(series["metric"]["job"]))]


def wait_until_watching(address: str, log: Path) -> None:
    def watches() -> bool:
        try:
            return len(query(address, "up == 1")) == 2 and min(looks(address)) > 1
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        until(watches)
    except AssertionError:
        raise AssertionError(log.read_text()) from None


def query(address: str, expression: str) -> list[dict[str, Any]]:
    return list(ask(f"{address}/api/v1/query", {"query": expression})["result"])


def ask(url: str, parameters: dict[str, str]) -> Any:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(parameters)}", timeout=WAIT) as answer:
        return json.load(answer)["data"]


def present(address: str, expression: str) -> list[dict[str, Any]]:
    """What a query finds that finds something. After a page that came too late it finds nothing until the next one."""
    found: list[dict[str, Any]] = []
    until(lambda: found.extend(query(address, expression)) or found)
    return found


def filled_in(expression: str, family: str) -> str:
    """The query with the dashboard's variables."""
    return expression.replace("$__rate_interval", "30m").replace("$family", family)


@pytest.mark.parametrize("name", QUERIES)
def test_a_panel_has_data(prometheus: str, name: str) -> None:
    found = present(prometheus, filled_in(QUERIES[name], VARIABLE["allValue"]))
    values = [float(series["value"][1]) for series in found]
    assert name.startswith("Extraction ") or not any(math.isnan(value) for value in values), QUERIES[name]


def test_the_families_can_be_chosen(prometheus: str) -> None:
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", VARIABLE["definition"]).groups()  # type: ignore[union-attr]
    assert ask(f"{prometheus}/api/v1/label/{label}/values", {"match[]": name}) == ["qwen3_tts"]
    assert label == VARIABLE["name"] and VARIABLE["multi"] and VARIABLE["includeAll"]


@pytest.mark.parametrize(
    "name", [name for name in QUERIES if "_talker_" in QUERIES[name] or "_code2wav_" in QUERIES[name]]
)
def test_a_panel_shows_the_chosen_families_one_by_one(prometheus: str, name: str) -> None:
    [legend] = [
        each["legendFormat"] for panel in PANELS for each in panel.get("targets", []) if each["expr"] == QUERIES[name]
    ]
    assert "{{family}}" in legend
    found = present(prometheus, filled_in(QUERIES[name], "qwen3_tts|another"))
    assert {series["metric"]["family"] for series in found} == {"qwen3_tts"}
    assert query(prometheus, filled_in(QUERIES[name], "another")) == []
