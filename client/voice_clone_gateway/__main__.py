"""The command `voice-clone-gateway`, also `python -m voice_clone_gateway`."""

from __future__ import annotations

import sys

from voice_clone_client._standard_output import until_reader_leaves


def main() -> int:
    """Serve until a signal; returns the exit code."""
    try:
        from .app import main as serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("voice_clone"):
            raise
        print(
            f"voice-clone-gateway: the package {error.name} is missing; in the folder of voice-clone: "
            "pip install './client[gateway]'",
            file=sys.stderr,
        )
        return 1

    return until_reader_leaves(serve)


if __name__ == "__main__":
    sys.exit(main())
