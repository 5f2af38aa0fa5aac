"""Where tritonserver comes from.

The variable VOICE_CLONE_TRITON_DIR names the folder of an installed one. Without it the server on PATH is used as it
is, such as that of an NGC container. Elsewhere it comes from the PyPI wheel `nvidia-pytriton`, which ships the binary,
the Python backend and a stub for every minor version of Python; they are put together into the backend folder that
`--backend-directory` wants.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "VOICE_CLONE_TRITON_DIR"
WHEEL = "nvidia-pytriton==0.7.0"
_LINKED = re.compile(rb"libpython(3\.\d+)\.so")  # the library of the stub's interpreter


class ServerFailed(Exception):
    """The server did not become ready; the text says why, from its log."""


def server_command(scratch: Path) -> tuple[list[str], dict[str, str]]:
    """The server's command and the environment it needs.

    Raises:
        ServerFailed: there is none, or its Python backend is made for another Python.
    """
    environment = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    if sys.prefix != sys.base_prefix:  # else the stub finds the packages by itself
        environment |= _packages()
    if named := os.environ.get(VARIABLE):
        folder = Path(named).absolute()
        return _installed(folder), environment | _libraries(folder / "lib")
    found = shutil.which("tritonserver")
    if found is not None:
        return [found], environment
    site = Path(sysconfig.get_paths()["purelib"])
    wheel = site / "pytriton" / "tritonserver"
    if not wheel.is_dir():
        raise ServerFailed(
            f"{VARIABLE} names no tritonserver, none is on PATH, and this environment has no wheel nvidia-pytriton; "
            f"run: {sys.executable} -m pip install --no-deps {WHEEL}"
        )
    backend = scratch / "backends" / "python"
    shutil.copytree(wheel / "backends" / "python", backend)
    stub = Path(shutil.copy(wheel / "python_backend_stubs" / _python() / "triton_python_backend_stub", backend))
    stub.chmod(0o755)
    _link_packages(backend)
    server = scratch / "tritonserver"
    shutil.copy(wheel / "bin" / "tritonserver", server)
    server.chmod(0o755)
    command = [str(server), f"--backend-directory={backend.parent}"]
    return command, environment | _packages() | _libraries(site / "nvidia_pytriton.libs")


def _installed(folder: Path) -> list[str]:
    """The command of the server in a folder as /opt/tritonserver of an image."""
    server, backend = folder / "bin" / "tritonserver", folder / "backends" / "python"
    stub = backend / "triton_python_backend_stub"
    for file in (server, backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub):
        if not file.is_file():
            raise ServerFailed(
                f"{VARIABLE}={folder} has no {file.relative_to(folder)}; name a folder as /opt/tritonserver"
            )
    found = _LINKED.search(stub.read_bytes())
    if found is not None and (made_for := found[1].decode()) != _python():
        raise ServerFailed(
            f"the Python backend in {VARIABLE}={folder} is made for Python {made_for}, this is {_python()}; "
            f"remove .venv and set PYTHON to a Python {made_for}, or name another server"
        )
    return [str(server), f"--backend-directory={backend.parent}"]


def _python() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def _packages() -> dict[str, str]:
    """What leads the models to the packages of this environment, and to those that the caller has put there.

    The stub's prefix is that of the base Python. A caller's are a family's from elsewhere, for example.
    """
    site = sysconfig.get_paths()["purelib"]
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), site, os.environ.get("PYTHONPATH", "")]))}


def _link_packages(backend: Path) -> None:
    """Link what is on PYTHONPATH into the stub's folder: the wheel's stub ignores the variable, but searches there."""
    for entry in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        for found in sorted(Path(entry).glob("[!._]*")):
            link = backend / found.name
            if (found.is_dir() or found.suffix in (".py", ".so")) and not link.exists():
                link.symlink_to(found.resolve())


def _libraries(folder: Path) -> dict[str, str]:
    """What leads the server to its libraries in a folder, and the stub to that of Python."""
    paths = [str(folder), str(sysconfig.get_config_var("LIBDIR") or ""), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}
