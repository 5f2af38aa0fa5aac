"""The files of Docker Compose as Compose itself reads them, and the monitoring that they start. Needs no daemon."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import fields
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml
from voice_clone_gateway import settings as gateway_settings
from voice_clone_gateway.http.auth import Keys

from tests.support.official.deployment_files import commands, compose, defaults, stages, values
from tools.settings_table import parameters, variables_only
from voice_clone_server.triton_server import EXIT_TIMEOUT, ROOT

pytestmark = pytest.mark.thorough

MONITORING = ROOT / "tools" / "monitoring"
# Without these Compose refuses the files that need them.
GIVEN = {
    "CHECKPOINT": "tests",
    "PIP_EXTRA_INDEX_URL": "INDEX",
    "DATABASE_PASSWORD": "secret",
    "VOICE_CLONE_GATEWAY_API_KEYS": "key speak",
}
FILES = ("cpu", "fleet", "mps", "public")
TOGETHER = [(), *((name,) for name in FILES), ("fleet", "cpu"), *permutations(("cpu", "fleet", "public"))]


def services(*files: str, **variables: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose(*files, **(GIVEN | variables))["services"]
    return found


def mounted(service: dict[str, Any], target: str) -> dict[str, Any]:
    """What is mounted there."""
    [found] = [volume for volume in service["volumes"] if volume["target"] == target]
    return dict(found)


def test_every_file_is_tried() -> None:
    assert {path.name.split(".")[1] for path in (ROOT / "tools").glob("docker-compose.*.yml")} == set(FILES)


@pytest.mark.parametrize("files", TOGETHER, ids="+".join)
def test_whatever_the_files_name_is_there(files: tuple[str, ...]) -> None:
    found = services(*files)
    built = {service["image"] for service in found.values() if "build" in service}
    for name, service in found.items():
        if "build" in service:
            assert service["build"]["target"] in stages()
            assert set(service["build"].get("args", {})) <= set(defaults("packages"))
        assert service["image"] in built or re.fullmatch(r"\S+:v?\d[\d.]+", service["image"]), "ours, or pinned"
        for volume in service.get("volumes", []):
            assert volume["type"] == "volume" or Path(volume["source"]).exists(), volume
            # so it prints `create_host_path: false`; else it would make what is not there, as root's
            assert volume["type"] == "volume" or volume["bind"] == {}, volume
        assert set(service.get("depends_on", {})) <= set(found)
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped"), name
    for name in {"server", "gateway", "balancer"} & set(found):
        assert int(found[name]["stop_grace_period"].rstrip("s")) > EXIT_TIMEOUT, name
    if "fleet" in files:
        assert found["migrate"]["image"] == found["server"]["image"] and found["server"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("folder", ["checkpoint", "./checkpoint", "a folder/of checkpoints", "{absolute}"])
def test_the_checkpoint_is_a_folder_however_it_is_named(folder: str, tmp_path: Path) -> None:
    """A bare name, too, which the short form of Compose takes for the name of a volume."""
    folder = folder.format(absolute=tmp_path)
    found = mounted(services(CHECKPOINT=folder)["server"], "/checkpoint")
    assert (found["type"], found["source"]) == ("bind", str((ROOT / folder).resolve()))
    assert found["read_only"]


def test_without_a_checkpoint_compose_says_what_is_missing() -> None:
    with pytest.raises(LookupError, match="CHECKPOINT is missing a value: the folder of a checkpoint"):
        compose()


def test_what_the_next_start_needs_outlives_the_container() -> None:
    """Voices, compiled code and packed weights."""
    server = services()["server"]
    [environment] = values("ENV", "server")
    for name in ("VOICE_CLONE_VOICE_DIR", "NUMBA_CACHE_DIR"):
        [folder] = re.findall(rf"{name}=(\S+)", environment)
        assert mounted(server, folder)["type"] == "volume"
        made = [line for line in values("RUN", "server") if "mkdir " in line and folder in line]
        assert made and re.search(rf"chown triton-server:0 .*{folder}\b", made[0]), "root's volume could not be written"


def test_variables_are_settings() -> None:
    names = {name for _, name, _, _ in parameters()} | set(variables_only())
    servers = {f"VOICE_CLONE_{name}".upper() for name in names}
    gateways = {f"{gateway_settings.PREFIX}{each.name}".upper() for each in fields(gateway_settings.Settings)}
    gateways.add(f"{gateway_settings.PREFIX}API_KEYS")  # a variable only, and no option: others see options
    for files in TOGETHER:
        found = services(*files)
        for name, known in (("server", servers), ("migrate", servers), ("gateway", gateways)):
            given = found.get(name, {}).get("environment", {})
            assert {each for each in given if each.startswith("VOICE_CLONE_")} <= known, (files, name)


def test_no_other_machine_reaches_a_port_unless_the_gateway_has_keys() -> None:
    """With nothing but a checkpoint given, and whatever address and keys there are for the gateway."""
    for variables in ({}, {"GATEWAY_ADDRESS": "0.0.0.0"}, {"VOICE_CLONE_GATEWAY_API_KEYS": "key speak"}):
        found = compose(CHECKPOINT="tests", **variables)["services"]
        ports = [port for service in found.values() for port in service.get("ports", [])]
        assert {port["host_ip"] for port in ports} == {"127.0.0.1"} and len(ports) == 5
        assert found["gateway"]["environment"]["VOICE_CLONE_GATEWAY_API_KEYS"] == variables.get(
            "VOICE_CLONE_GATEWAY_API_KEYS", ""
        )
    with pytest.raises(LookupError, match="VOICE_CLONE_GATEWAY_API_KEYS is missing a value: without keys"):
        compose("public", CHECKPOINT="tests")
    words = dict(word.split("=", 1) for word in shlex.split(commands("docker-compose.public.yml")) if "=" in word)
    assert len(Keys(words["VOICE_CLONE_GATEWAY_API_KEYS"].split(";")).all()) == 2
    for address in ("0.0.0.0", "192.0.2.1"):
        found = services("public", **words, GATEWAY_ADDRESS=address)
        opened = {
            (name, port["host_ip"], port["published"])
            for name, service in found.items()
            for port in service.get("ports", [])
            if port["host_ip"] != "127.0.0.1"
        }
        assert opened == {("gateway", address, "8080")}
        assert found["gateway"]["environment"]["VOICE_CLONE_GATEWAY_API_KEYS"] == words["VOICE_CLONE_GATEWAY_API_KEYS"]


def test_our_containers_have_no_privileges() -> None:
    ours = {name: service for name, service in services().items() if "build" in service}
    assert set(ours) == {"server", "gateway"}
    for service in ours.values():
        assert service["security_opt"] == ["no-new-privileges:true"] and service["cap_drop"] == ["ALL"]
    assert ours["gateway"]["read_only"] and ours["gateway"]["tmpfs"] == ["/tmp"]


def test_the_servers_of_a_fleet_share_a_store() -> None:
    fleet = services("fleet")
    store = fleet["server"]["environment"]["VOICE_CLONE_VOICE_STORE"]
    assert store == fleet["migrate"]["environment"]["VOICE_CLONE_VOICE_STORE"] and "secret" in store
    assert fleet["migrate"]["command"][:2] == ["voice-clone-server", "voice-store"]
    assert fleet["gateway"]["environment"]["VOICE_CLONE_GATEWAY_TRITON"] == "dns:///server:8001"
    assert fleet["balancer"]["environment"]["SERVERS"] == "server" and "ports" not in fleet["server"]


@pytest.mark.parametrize(("status", "printed"), [(0, "daemon -d\na b c\n"), (1, "daemon -d\n")])
def test_with_mps_the_server_starts_as_the_image_does(status: int, printed: str, tmp_path: Path) -> None:
    """Behind the daemon, if that starts, and by the same command. The shell runs here, with a daemon that is none."""
    server = services("mps")["server"]
    [entry], [command] = values("ENTRYPOINT", "server"), values("CMD", "server")
    words = [word.replace("$$", "$") for word in server["entrypoint"]]
    assert words[:3] == json.loads(entry) and server["command"] == json.loads(command)
    daemon = tmp_path / words[5].split()[0]
    daemon.write_text(f'#!/bin/sh\necho daemon "$@"\nexit {status}\n')
    daemon.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run([*words[3:], "echo", "a b", "c"], capture_output=True, text=True, env=path, check=False)
    assert (ran.returncode, ran.stdout) == (status, printed)


def test_prometheus_scrapes_the_services_of_compose() -> None:
    scraped = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
    ports = {"server": "8002", "gateway": "8080"}
    targets = [t for job in scraped["scrape_configs"] for group in job["static_configs"] for t in group["targets"]]
    assert sorted(targets) == sorted(f"{name}:{port}" for name, port in ports.items())
    assert set(ports) <= set(services())


def test_grafana_finds_its_dashboard() -> None:
    provider = yaml.safe_load((MONITORING / "grafana" / "dashboards.yml").read_text(encoding="utf-8"))
    folder = Path(provider["providers"][0]["options"]["path"])
    assert Path(mounted(services()["grafana"], str(folder / "voice_clone.json"))["source"]).is_file()
    dashboard = json.loads((MONITORING / "grafana" / "voice_clone.json").read_text(encoding="utf-8"))
    sources = yaml.safe_load((MONITORING / "grafana" / "datasources.yml").read_text(encoding="utf-8"))["datasources"]
    for panel in dashboard["panels"]:
        assert panel["type"] == "row" or (panel["description"] and panel["datasource"]["uid"] == sources[0]["uid"])
