"""Which tritonserver the tools and tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tools.settings_table import OTHERS
from voice_clone_server.diagnosis import needs
from voice_clone_server.triton_binary import ROOT, VARIABLE, ServerFailed, server_command
from voice_clone_server.triton_server import shared_memory_options

FILES = ("bin/tritonserver", "backends/python/libtriton_python.so", "backends/python/triton_python_backend_utils.py")
STUB = "backends/python/triton_python_backend_stub"
HERE = ".".join(map(str, sys.version_info[:2]))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as /opt/tritonserver, which the variable names."""
    folder = tmp_path / "tritonserver"
    for name in (*FILES, STUB):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"\x7fELF...\0")
    (folder / STUB).write_bytes(f"\0libc.so.6\0libpython{HERE}.so.1.0\0".encode())
    (folder / "bin" / "tritonserver").chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def test_the_named_server_goes_before_all_others(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "tritonserver"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{other.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/mine")
    command, environment = server_command(tmp_path / "scratch")
    assert command == [f"{installed}/bin/tritonserver", f"--backend-directory={installed}/backends"]
    libraries = environment["LD_LIBRARY_PATH"].split(os.pathsep)
    assert libraries[0] == f"{installed}/lib" and libraries[-1] == "/usr/local/mine"
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert not (tmp_path / "scratch").exists(), "nothing is copied"
    assert str(installed) in needs.server().detail
    monkeypatch.delenv(VARIABLE)
    command, environment = server_command(tmp_path / "scratch")
    assert command == [str(other)] and "LD_LIBRARY_PATH" not in environment
    assert str(other) in needs.server().detail


def test_without_an_environment_of_its_own_the_packages_are_the_system_s(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in our image: PYTHONPATH is the caller's."""
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert "PYTHONPATH" not in server_command(tmp_path)[1]


def test_a_relative_folder_is_that_of_the_caller(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(installed.parent)
    monkeypatch.setenv(VARIABLE, installed.name)
    assert server_command(tmp_path)[0][0] == f"{installed}/bin/tritonserver"


@pytest.mark.parametrize("missing", [*FILES, STUB])
def test_what_the_folder_lacks_is_named(installed: Path, tmp_path: Path, missing: str) -> None:
    (installed / missing).unlink()
    with pytest.raises(ServerFailed, match=rf"{VARIABLE}={installed} has no {missing}; .*/opt/tritonserver"):
        server_command(tmp_path)


def test_a_backend_for_another_python_is_refused(installed: Path, tmp_path: Path) -> None:
    (installed / STUB).write_bytes(b"\0libpython3.9.so.1.0\0")
    with pytest.raises(ServerFailed, match=f"made for Python 3.9, this is {HERE}; .*set PYTHON to a Python 3.9"):
        server_command(tmp_path)


def test_the_wheel_is_taken_where_nothing_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("voice_clone_server.triton_binary.shutil.which", lambda name: None)
    command, environment = server_command(tmp_path)
    assert Path(command[0]).parent == tmp_path and "nvidia_pytriton.libs" in environment["LD_LIBRARY_PATH"]
    stub = tmp_path / "backends" / "python" / "triton_python_backend_stub"
    assert f"libpython{HERE}.so".encode() in stub.read_bytes(), "else no wrong Python would be noticed"
    assert "wheel nvidia-pytriton" in needs.server().detail


def test_the_table_of_settings_has_the_variable() -> None:
    assert VARIABLE in OTHERS


OLD, NEW = "--http-restricted-api --grpc-restricted-protocol", "--http-restricted-api --allow-client-shm"


@pytest.mark.parametrize(
    ("known", "allowed", "options", "expected"),
    [
        (OLD, False, [], ["--http-restricted-api", "--grpc-restricted-protocol"]),
        (OLD, True, [], []),
        (OLD, False, ["--http-restricted-api=trace,shared-memory:a=b"], ["--grpc-restricted-protocol"]),
        (OLD, False, ["--grpc-restricted-protocol", "shared-memory:a=b", "--x"], ["--http-restricted-api"]),
        (OLD, False, ["--http-restricted-api=trace:a=b"], ["--http-restricted-api", "--grpc-restricted-protocol"]),
        (NEW, False, [], []),
        (NEW, True, [], ["--allow-client-shm"]),
        (NEW, True, ["--allow-client-shm=false"], []),
        ("", False, [], []),
    ],
)
def test_shared_memory_is_closed_to_clients(
    tmp_path: Path, known: str, allowed: bool, options: list[str], expected: list[str]
) -> None:
    """By what the server's help knows, and without what the caller has said."""
    server = tmp_path / "tritonserver"
    server.write_text(f'#!/bin/sh\n[ "$*" = --help ] && echo "{known}" >&2\nexit 1\n')
    server.chmod(0o755)
    made = shared_memory_options(allowed, [str(server)], os.environ, options)
    assert [option.partition("=")[0] for option in made] == expected
