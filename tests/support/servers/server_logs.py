"""What the servers of a run have written to their logs."""

from __future__ import annotations

from pathlib import Path


class Logs:
    """The logs of all servers that were started in this run, and how much of each has been looked through."""

    def __init__(self) -> None:
        self._looked: dict[Path, int] = {}

    def add(self, log: object) -> None:
        """The log of a server that starts; a server that writes to the terminal has none."""
        if isinstance(log, Path):
            self._looked.setdefault(log, 0)

    def tracebacks(self) -> list[str]:
        """Those written since the last call. A file that a test has removed tells none."""
        found = []
        for log in [log for log in self._looked if log.exists()]:
            text = log.read_text(errors="replace")
            new, self._looked[log] = text[self._looked[log] :], len(text)
            found += [f"{log}: {line}".replace("\\n", "\n") for line in new.splitlines() if "Traceback" in line]
        return found
