"""Dockerfile and docs/deployment.md: whatever they name is there. Needs no Docker."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from importlib import import_module, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from voice_clone_gateway import settings as gateway_settings
from voice_clone_gateway.routes.models import health_router

from tests.support.official.deployment_files import (
    DOCKERFILE,
    DOCUMENT,
    defaults,
    instructions,
    stages,
    values,
)
from tools.requirements import project
from tools.settings_table import parameters
from tools.triton_releases import NEWEST, RELEASES
from voice_clone_server import serve
from voice_clone_server.triton_binary import WHEEL
from voice_clone_server.triton_server import EXIT_TIMEOUT, ROOT, free_ports

OURS = ("voice-clone-client", "voice-clone-command", "voice-clone-gateway", "voice-clone-server")
PINS = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if not line.startswith("#")]


def test_every_copied_path_is_in_the_repository() -> None:
    copied = [shlex.split(arguments)[:-1] for keyword, arguments in instructions() if keyword == "COPY"]
    assert copied
    for path in [path for paths in copied for path in paths if not path.startswith(("--from=", "/"))]:
        assert any(ROOT.glob(path)), path


def test_every_base_image_is_one_pinned_release() -> None:
    given = [arguments for keyword, arguments in instructions() if keyword == "ARG"]
    defaults = dict(arguments.split("=", 1) for arguments in given if "=" in arguments)
    bases = {arguments.split()[0] for keyword, arguments in instructions() if keyword == "FROM"} - set(stages())
    assert bases
    for base in bases:
        image = re.sub(r"\$\{(\w+)\}", lambda found: defaults[found.group(1)], base)
        assert re.fullmatch(r"\S+:\d+\.\d+[\w.-]*", image), image


@pytest.mark.parametrize("stage", ["cpu", "server", "gateway"])
def test_an_image_that_runs(stage: str) -> None:
    """Not as root, under an init that reaps, with a health check, and without apt's lists."""
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
        assert "sudo" not in line and "|" not in line, "a pipe hides the failure of what is before it"
        assert "pip install" not in line or "--no-cache-dir" in line
    [command] = values("CMD", stage)
    assert json.loads(command), "a shell as process 1 passes no signal on"
    assert all(path.startswith("/") for path in values("WORKDIR", stage))
    assert not values("ADD", stage)


def test_the_image_has_torch_and_the_onnx_runtime_of_its_release(tmp_path: Path) -> None:
    """CosyVoice3 works in the image as anywhere: its runtime is there, for a GPU or, by an argument, without."""
    arguments = defaults("packages")
    assert arguments["TRITON"] == NEWEST.name
    assert arguments["ONNX_RUNTIME"] == "onnxruntime-gpu" and arguments["PIP_EXTRA_INDEX_URL"] == ""
    [torch] = [each for each in PINS if each.startswith("torch==")]
    builds = re.findall(r"torch==[\w.+]+", DOCKERFILE + DOCUMENT)
    assert arguments["TORCH"] == torch and {each.partition("+")[0] for each in builds} == {torch}
    [line] = values("RUN", "packages")
    pins, wheels = line.split(" && ")
    required = ["--requirement", "pins.txt", "--requirement", "server.txt", "${TORCH}", "${ALIGNMENT}"]
    assert shlex.split(wheels)[-6:] == required
    [copied] = [line for line in values("COPY", "packages") if line.endswith(" ./") and "tools/" in line]
    shutil.copy(ROOT / "tools" / "triton_releases.py", tmp_path)
    assert "tools/triton_releases.py" in shlex.split(copied)
    python = tmp_path / "python3"  # of the image: it runs the file, and says that it is the Python of the release
    python.write_text(
        f"#!{sys.executable}\nimport runpy, sys\n"
        f"module = runpy.run_path({str(tmp_path / 'triton_releases.py')!r})\n"
        f"sys.exit(module['main'](sys.argv[2:], {NEWEST.python!r}))\n"
    )
    python.chmod(0o755)
    subprocess.run(
        ["bash", "-euc", pins], cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **arguments}, check=True
    )
    assert (tmp_path / "pins.txt").read_text().split() == NEWEST.requirements()
    assert any("/wheels/*.whl" in each for each in values("RUN", "server"))


def test_the_tools_and_the_image_for_a_cpu_have_the_same_triton() -> None:
    assert {defaults("triton")["PYTRITON"], WHEEL} < {*PINS}


def required(package: str, extra: str = "") -> list[Requirement]:
    """What a package needs to be installed, with one of its extras."""
    found = map(Requirement, metadata.requires(package) or [])
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": extra})]


@pytest.mark.parametrize(
    ("package", "extra", "image"), [("voice-clone-server", "torch", "server"), ("voice-clone-gateway", "", "gateway")]
)
def test_every_required_package_is_made_for_the_pythons_of_its_image(package: str, extra: str, image: str) -> None:
    gateways = set(re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE, re.MULTILINE))
    pythons = {"server": {release.python for release in RELEASES}, "gateway": gateways}[image]
    assert pythons
    for requirement in required(package, extra):
        wanted = metadata.metadata(requirement.name)["Requires-Python"] or ""
        assert all(SpecifierSet(wanted).contains(f"{python}.3") for python in pythons), (
            f"{requirement} needs Python {wanted}, {image} has {pythons}"
        )


def test_the_gateway_s_package_brings_all_that_it_imports() -> None:
    """Where it is installed alone, with what its image has besides."""
    fleet = project(ROOT / "gateway")["optional-dependencies"]["fleet"]
    brought, left = set(), ["voice-clone-gateway", *(Requirement(each).name for each in fleet)]
    while left:
        name = left.pop().lower().replace("_", "-")
        if name not in brought:
            brought.add(name)
            with contextlib.suppress(metadata.PackageNotFoundError):  # of another system
                left += [each.name for each in required(name)]
    trees = [ast.parse(file.read_text("utf-8")) for file in (ROOT / "gateway" / "voice_clone_gateway").rglob("*.py")]
    plain = [node for tree in trees for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {each.name for node in plain if isinstance(node, ast.Import) for each in node.names}
    names |= {node.module for node in plain if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    packages = metadata.packages_distributions()
    for module in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"voice_clone_gateway"}:
        assert {each.lower().replace("_", "-") for each in packages[module]} & brought, module


def test_the_packages_are_released_together() -> None:
    """They have one version, and each takes the others of its own."""
    versions = {metadata.version(name) for name in OURS}
    assert len(versions) == 1
    needed = [each for name in OURS for each in required(name, "demo")]
    own = {str(each.specifier) for each in needed if each.name in OURS and not each.extras}
    assert own == {f"=={versions.pop()}"}


def test_the_server_s_package_has_the_models_and_the_demo_s_voice() -> None:
    toml = import_module("tomllib")  # Python 3.10, for which mypy checks, has none
    tables = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    package = ROOT / "voice_clone_server"
    packed = {path for each in tables["package-data"][package.name] for path in package.glob(each) if path.is_file()}
    linked = [package / "data", package / "model_repository", package / "optional_models"]
    there = {path for link in linked for path in link.resolve().rglob("*") if path.is_file()}
    packed.remove(package / "py.typed")
    assert {path.resolve() for path in packed} == {path for path in there if "__pycache__" not in path.parts}


@pytest.mark.parametrize("package", OURS)
def test_each_range_has_a_pin_within_it_and_is_closed(package: str) -> None:
    """A major version that nobody has tried is not taken."""
    pins = dict(each.split("==") for each in PINS)
    for each in map(Requirement, metadata.requires(package) or []):
        if str(each.specifier).startswith("==") or each.name in OURS:
            continue
        assert each.specifier.contains(pins[each.name.lower()]), each
        bounds = {bound.operator for bound in each.specifier}
        assert bounds == ({">="} if each.name == "regex" else {">=", "<"}), f"{each}; regex has no major versions"


def test_only_folders_are_installed_under_our_names() -> None:
    """The public registry does not have our packages: who installs one by name there gets a stranger's."""
    folders = [
        ROOT / name for name in ("client", "docs", "gateway", "perf", "tools", "voice_clone", "voice_clone_server")
    ]
    files = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*"))]
    wrong = re.compile(r"""pip install[^`\n|;&]*[ '"]voice[-_]clone|\bvoice[-_]clone[-_\w]*\[[a-z]""")
    found = {
        f"{path.name}: {line.strip()}"
        for path in files
        if path.suffix in (".md", ".py", ".sh")
        for line in path.read_text(encoding="utf-8").splitlines()
        if wrong.search(line)
    }
    assert len(files) > 100 and wrong.search("pip install voice-clone[postgresql]")
    assert not found


def test_variables_are_settings() -> None:
    servers = {f"VOICE_CLONE_{name}".upper() for _, name, _, _ in parameters()}
    gateways = {f"{gateway_settings.PREFIX}{each.name}".upper() for each in fields(gateway_settings.Settings)}
    gateways.add(f"{gateway_settings.PREFIX}API_KEYS")  # a variable only, and no option: others see options
    for stage, known in (("server", servers), ("gateway", gateways)):
        given = {word.partition("=")[0] for line in values("ENV", stage) for word in shlex.split(line)}
        assert {name for name in given if name.startswith("VOICE_CLONE_")} <= known
        assert any(name.startswith("VOICE_CLONE_") for name in given)


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="no systemd-analyze, which checks the unit (Debian: apt-get install systemd)",
)
def test_the_systemd_unit(tmp_path: Path) -> None:
    """Systemd knows all of it, and tools/serve all of its options; the folders are those of this checkout."""
    unit = (ROOT / "tools" / "voice-clone.service").read_text(encoding="utf-8")
    file = tmp_path / "voice-clone.service"
    file.write_text(unit.replace("/opt/voice-clone", str(ROOT)), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True)
    assert done.returncode == 0 and "voice-clone.service" not in done.stderr, done.stderr
    [command] = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    ports = [f"--{kind}-port={port}" for kind, port in zip(("grpc", "http", "metrics"), free_ports(3), strict=True)]
    _, given = serve.parse([*shlex.split(command)[1:], *ports])
    assert given.voices == Path("/var/lib/voice-clone")
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(seconds) > EXIT_TIMEOUT + 15


def test_health_checks_ask_what_is_there() -> None:
    [server], [gateway] = values("HEALTHCHECK", "server"), values("HEALTHCHECK", "gateway")
    assert "http://localhost:8000/v2/health/ready" in server and "8000" in values("EXPOSE", "server")[0].split()
    [load_seconds] = re.findall(r"--load-seconds=(\d+)", values("CMD", "server")[0])
    assert f"--start-period={load_seconds}s " in server, "it may not be called unhealthy while it may still load"
    port = gateway_settings.Settings().port
    assert f"http://localhost:{port}/health'" in gateway and values("EXPOSE", "gateway") == [str(port)]
    assert "/health" in {getattr(route, "path", "") for route in health_router.routes}


def test_only_the_image_for_a_cpu_has_weights() -> None:
    for stage in stages():
        copied = [shlex.split(line)[0] for line in values("COPY", stage)]
        weights = [
            each for path in copied for found in ROOT.glob(path.lstrip("/")) for each in found.rglob("*.safetensors")
        ]
        assert bool(weights) == (stage == "cpu"), stage


def test_the_server_runs_the_installed_program(tmp_path: Path) -> None:
    """With options that it knows, and with nothing beside the packages and the models."""
    [command] = values("CMD", "server")
    assert values("COPY", "server")[-1] == "model_repository /models"
    assert values("VOLUME", "server") == ["/voices"], "models in an anonymous volume would outlive their image"
    words = json.loads(command)
    assert {"--models=/models", "--host=0.0.0.0", "--checkpoint=/checkpoint"} < set(words)
    ports = [f"--{kind}-port={port}" for kind, port in zip(("grpc", "http", "metrics"), free_ports(3), strict=True)]
    started = subprocess.run(
        [Path(sys.executable).with_name(words[0]), *words[1:], *ports, f"--checkpoint={tmp_path / 'none'}"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    [error] = started.stderr.splitlines()
    assert started.returncode == 2 and error.startswith(
        "voice-clone-server serve: there is no model repository /models"
    ), error
