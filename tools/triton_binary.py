"""Where tritonserver comes from.

Inside the NGC container the server on PATH is used as it is. Elsewhere it comes from the PyPI wheel
`nvidia-pytriton`, which ships the binary, the Python backend and a stub for every minor version of Python; they are
put together into the backend folder that `--backend-directory` wants.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class ServerFailed(Exception):
    """The server did not become ready; the text says why, from its log."""


def server_command(scratch: Path) -> tuple[list[str], dict[str, str]]:
    """The server's command and the environment it needs.

    Raises:
        ServerFailed: there is none.
    """
    environment = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    found = shutil.which("tritonserver")
    if found is not None:
        return [found], environment
    site = Path(sysconfig.get_paths()["purelib"])
    wheel, libraries = site / "pytriton" / "tritonserver", site / "nvidia_pytriton.libs"
    if not wheel.is_dir():
        raise ServerFailed("no tritonserver on PATH and no nvidia-pytriton wheel in this environment; run tools/serve")
    backend = scratch / "backends" / "python"
    shutil.copytree(wheel / "backends" / "python", backend)
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = Path(shutil.copy(wheel / "python_backend_stubs" / minor / "triton_python_backend_stub", backend))
    stub.chmod(0o755)
    server = scratch / "tritonserver"
    shutil.copy(wheel / "bin" / "tritonserver", server)
    server.chmod(0o755)
    # The stub's prefix is that of the base Python; PYTHONPATH leads it to the packages of a virtual environment, and to
    # those that the caller has put there, such as a family's from elsewhere.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), str(site), os.environ.get("PYTHONPATH", "")]))
    library = [str(libraries), str(sysconfig.get_config_var("LIBDIR") or "")]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [*library, os.environ.get("LD_LIBRARY_PATH", "")]))
    return [str(server), f"--backend-directory={backend.parent}"], environment
