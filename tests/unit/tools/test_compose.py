"""docker-compose.yml and the monitoring that it starts: whatever they name is there. Needs no Docker."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from voice_clone_gateway.http.auth import Keys

from tests.support.deployment_files import (
    DOCKERFILE,
    DOCUMENT,
    RESET,
    commands,
    compose,
    defaults,
    interpolated,
    stages,
    values,
)
from tools.triton_server import EXIT_TIMEOUT, ROOT

MONITORING = ROOT / "tools" / "monitoring"
COMPOSE, CPU = compose("docker-compose.yml"), compose("tools/docker-compose.cpu.yml")


def test_compose_names_targets_volumes_and_files_that_exist() -> None:
    assert set(COMPOSE["services"]["server"]["build"]["args"]) == set(defaults("packages"))
    for name, service in COMPOSE["services"].items():
        if "build" in service:
            assert service["build"]["target"] in stages(), name
            for argument, value in service["build"].get("args", {}).items():
                assert value == f"${{{argument}:-{defaults('packages')[argument]}}}"
        for volume in service.get("volumes", []):
            source = volume.rsplit(":", 2)[0] if volume.endswith(":ro") else volume.rsplit(":", 1)[0]
            if source.startswith("./"):
                assert (ROOT / source).is_file(), source
            elif not source.startswith("${"):
                assert source in COMPOSE["volumes"], source
        for other in service.get("depends_on", []):
            assert other in COMPOSE["services"]
    grace = COMPOSE["services"]["server"]["stop_grace_period"]
    assert int(grace.rstrip("s")) > EXIT_TIMEOUT


def test_nobody_else_reaches_a_port_unless_the_gateway_has_keys() -> None:
    ports = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert len(ports) == 3
    for port in [port for each in ports.values() for port in each]:
        assert interpolated(port).startswith("127.0.0.1:"), port
    [keys] = [value for name, value in COMPOSE["services"]["gateway"]["environment"].items() if name.endswith("KEYS")]
    assert interpolated(keys) == ""
    with pytest.raises(LookupError, match="GATEWAY_ADDRESS"):
        interpolated(keys, GATEWAY_ADDRESS="0.0.0.0")
    words = dict(word.split("=", 1) for word in shlex.split(commands("GATEWAY_ADDRESS=")) if "=" in word)
    assert interpolated(keys, **words) == words["VOICE_CLONE_GATEWAY_API_KEYS"]
    assert len(Keys(words["VOICE_CLONE_GATEWAY_API_KEYS"].split(";")).all()) == 2
    assert interpolated(ports["gateway"][0], **words) == "0.0.0.0:8080:8080"


def test_our_containers_have_no_privileges() -> None:
    ours = [service for service in COMPOSE["services"].values() if "build" in service]
    assert len(ours) == 2
    for service in ours:
        assert service["security_opt"] == ["no-new-privileges:true"] and service["cap_drop"] == ["ALL"]
    assert COMPOSE["services"]["gateway"]["read_only"] and COMPOSE["services"]["gateway"]["tmpfs"] == ["/tmp"]


def test_without_a_gpu_only_the_gpu_s_part_differs() -> None:
    [(name, server)] = CPU["services"].items()
    base = COMPOSE["services"][name]
    assert server["deploy"] == RESET and "gpu" in str(base["deploy"])
    assert set(server["build"]["args"]) == set(base["build"]["args"]) and server["image"] != base["image"]
    given = {name: interpolated(value, PIP_EXTRA_INDEX_URL="INDEX") for name, value in server["build"]["args"].items()}
    assert given["TORCH"] == f"{defaults('packages')['TORCH']}+cpu" and given["ONNX_RUNTIME"] == "onnxruntime"
    assert server["environment"]["VOICE_CLONE_DEVICE"] == "cpu" and "VOICE_CLONE_DEVICE=cuda" in DOCKERFILE
    with pytest.raises(LookupError, match="docs/deployment"):
        interpolated(server["build"]["args"]["PIP_EXTRA_INDEX_URL"])
    comment = (ROOT / "tools" / "docker-compose.cpu.yml").read_text(encoding="utf-8").partition("\nservices")[0]
    for text in (commands("docker-compose.cpu.yml"), comment):
        assert "PIP_EXTRA_INDEX_URL=INDEX" in text
        assert all((ROOT / file).is_file() for file in re.findall(r"-f (\S+)", text))


@pytest.mark.parametrize(("status", "printed"), [(0, "daemon -d\na b c\n"), (1, "daemon -d\n")])
def test_with_mps_the_server_starts_as_the_image_does(status: int, printed: str, tmp_path: Path) -> None:
    """Behind the daemon, if that starts, and by the same command. The shell runs here, with a daemon that is none."""
    [(name, server)] = compose("tools/docker-compose.mps.yml")["services"].items()
    [entry], [command] = values("ENTRYPOINT", "server"), values("CMD", "server")
    words = [word.replace("$$", "$") for word in server["entrypoint"]]
    assert name == "server" and words[:3] == json.loads(entry) and server["command"] == json.loads(command)
    daemon = tmp_path / words[5].split()[0]
    daemon.write_text(f'#!/bin/sh\necho daemon "$@"\nexit {status}\n')
    daemon.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run([*words[3:], "echo", "a b", "c"], capture_output=True, text=True, env=path, check=False)
    assert (ran.returncode, ran.stdout) == (status, printed)


def test_grafana_s_login_is_told() -> None:
    environment = COMPOSE["services"]["grafana"]["environment"]
    assert interpolated(environment["GF_SECURITY_ADMIN_PASSWORD"]) == "admin"
    for text in (DOCUMENT, (ROOT / "docker-compose.yml").read_text(encoding="utf-8")):
        [line] = [line for line in text.splitlines() if "localhost:3000" in line]
        assert line.count("admin") == 2 and "GRAFANA_PASSWORD" in line


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
