"""An adapter that another package brings: the one of the gateway's page of documentation."""

from __future__ import annotations

import io
import re
from pathlib import Path

import httpx2
import pytest
import soundfile

from perf.bench.gateway_process import Gateway
from tests.support.doubles.triton_double import Server
from tests.support.installed_package import install_package

README = (Path(__file__).parents[3] / "gateway" / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The folder in which it is installed."""
    [group] = re.findall(r"```toml\n\[project\.entry-points\.\"([\w.]+)\"\]\n", README)
    [point] = re.findall(r"^\w+ = \"(\w+:\w+)\"$", README, re.MULTILINE)
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    return install_package(tmp_path, point.partition(":")[0], code, {group: {"chatter": point}})


def test_its_calls_are_those_of_the_gateway(triton: Server, package: Path) -> None:
    with (
        Gateway(triton.url, package / "log", PYTHONPATH=str(package)) as gateway,
        httpx2.Client(base_url=gateway.url, timeout=30, trust_env=False) as http,
    ):
        spoken = http.post("/chatter/say", json={"say": "Good day.", "who": "ada"})
        assert spoken.status_code == 200, spoken.text
        assert soundfile.info(io.BytesIO(spoken.content)).format == "WAV"
        asked = triton.speeches[-1][1]
        assert (asked["text"], asked["voice"]) == (b"Good day.", b"ada")
        refused = http.post("/chatter/say", json={"say": "", "who": "ada"})
        assert refused.status_code == 400 and "say" in refused.json()["error"]["message"]
