"""The command `voice-clone-gateway`, also `python -m voice_clone_gateway`."""

from __future__ import annotations

import sys

from voice_clone_program.running import run_program


def main() -> int:
    """Serve until a signal; returns the exit code."""
    return run_program("voice-clone-gateway", _serve)


def _serve() -> int:
    import numpy  # noqa: F401 - first: the compiled libraries that want it print a traceback if a signal stops it

    from .settings import parse

    settings = parse()
    try:
        from .app import serve  # takes seconds, which --help and a wrong option need not wait for
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("voice_clone"):
            raise
        print(
            f"voice-clone-gateway: the package {error.name} is missing; in the folder of voice-clone: "
            "pip install ./client ./gateway",
            file=sys.stderr,
        )
        return 1
    if settings.standby and not sys.stdin.buffer.read(1):
        return 0  # whoever started it has ended
    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
