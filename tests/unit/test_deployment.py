"""Dockerfile, docker-compose.yml and the monitoring beside them: whatever they name is there. Needs no Docker."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.triton_server import ROOT

MONITORING = ROOT / "tools" / "monitoring"
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


def instructions() -> list[tuple[str, str]]:
    """(keyword, arguments) of the Dockerfile, comments dropped and continued lines joined."""
    lines = [line for line in TEXT.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each named stage."""
    found: dict[str, list[tuple[str, str]]] = {}
    for keyword, arguments in instructions():
        if keyword == "FROM":
            found[arguments.split()[-1]] = current = [(keyword, arguments)]
        elif found:
            current.append((keyword, arguments))
    return found


def values(keyword: str, stage: str) -> list[str]:
    return [arguments for name, arguments in stages()[stage] if name == keyword]


def test_every_copied_path_is_in_the_repository() -> None:
    copied = [shlex.split(arguments)[:-1] for keyword, arguments in instructions() if keyword == "COPY"]
    assert copied
    for path in [path for paths in copied for path in paths]:
        assert (ROOT / path).exists(), path


def test_every_base_image_is_one_pinned_release() -> None:
    defaults = dict(arguments.split("=", 1) for keyword, arguments in instructions() if keyword == "ARG")
    for keyword, arguments in instructions():
        if keyword != "FROM":
            continue
        image = re.sub(r"\$\{(\w+)\}", lambda found: defaults[found.group(1)], arguments.split()[0])
        assert re.fullmatch(r"\S+:\d+\.\d+[\w.-]*", image), image


@pytest.mark.parametrize("stage", ["server", "gateway"])
def test_an_image_that_runs(stage: str) -> None:
    """As nobody's root, under an init that reaps, with a health check, and with nothing left of apt's lists."""
    [user] = values("USER", stage)
    assert user not in ("root", "0")
    [entry] = values("ENTRYPOINT", stage)
    assert json.loads(entry)[:2] == ["tini", "--"]
    [check] = values("HEALTHCHECK", stage)
    assert json.loads(check.partition("CMD ")[2])
    for line in values("RUN", stage):
        if "apt-get install" in line:
            assert (
                "--no-install-recommends" in line and "rm -rf /var/lib/apt/lists" in line and "apt-get update" in line
            )
            assert all("=" in package for package in line.split("recommends")[1].split("&&")[0].split()), "pinned"
        assert "sudo" not in line
    assert not values("ADD", stage)


def test_no_weights_are_inside() -> None:
    copied = [shlex.split(arguments)[0] for keyword, arguments in instructions() if keyword == "COPY"]
    for path in copied:
        assert not list((ROOT / path).rglob("*.safetensors")), path


def test_the_server_runs_what_the_tools_run() -> None:
    [command] = values("CMD", "server")
    started = json.loads(command)
    launcher = (ROOT / "tools" / "triton_server.py").read_text(encoding="utf-8")
    assert started[0] == "tritonserver"
    for option in started[1:]:
        assert option.split("=")[0] in launcher, option
        assert option in launcher or "pattern" not in option, option
    assert "/models" in json.loads(values("VOLUME", "server")[0]) and "--model-repository=/models" in started


def test_the_gateway_s_command_is_one_of_the_client_s() -> None:
    [command] = values("CMD", "gateway")
    scripts = (ROOT / "client" / "pyproject.toml").read_text(encoding="utf-8").partition("[project.scripts]")[2]
    assert f"{json.loads(command)[0]} = " in scripts


def test_compose_names_targets_volumes_and_files_that_exist() -> None:
    for name, service in COMPOSE["services"].items():
        if "build" in service:
            assert service["build"]["target"] in stages(), name
        for volume in service.get("volumes", []):
            source = volume.rsplit(":", 2)[0] if volume.endswith(":ro") else volume.rsplit(":", 1)[0]
            if source.startswith("./"):
                assert (ROOT / source).is_file(), source
            elif not source.startswith("${"):
                assert source in COMPOSE["volumes"], source
        for other in service.get("depends_on", []):
            assert other in COMPOSE["services"]
    grace = COMPOSE["services"]["server"]["stop_grace_period"]
    timeout = re.search(r"exit-timeout-secs=(\d+)", TEXT)
    assert timeout is not None and int(grace.rstrip("s")) > int(timeout.group(1))


def test_prometheus_scrapes_the_services_of_compose() -> None:
    scraped = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
    ports = {"server": "8002", "gateway": "8080"}
    targets = [t for job in scraped["scrape_configs"] for group in job["static_configs"] for t in group["targets"]]
    assert sorted(targets) == sorted(f"{name}:{port}" for name, port in ports.items())
    for name in ports:
        assert name in COMPOSE["services"]


def test_grafana_finds_its_dashboard() -> None:
    provider = yaml.safe_load((MONITORING / "grafana" / "dashboards.yml").read_text(encoding="utf-8"))
    folder = Path(provider["providers"][0]["options"]["path"])
    mounts = [volume.split(":")[1] for volume in COMPOSE["services"]["grafana"]["volumes"]]
    assert str(folder / "voice_clone.json") in mounts
    dashboard = json.loads((MONITORING / "grafana" / "voice_clone.json").read_text(encoding="utf-8"))
    source = yaml.safe_load((MONITORING / "grafana" / "datasources.yml").read_text(encoding="utf-8"))["datasources"][0]
    for panel in dashboard["panels"]:
        assert panel["type"] == "row" or (panel["description"] and panel["datasource"]["uid"] == source["uid"])
