"""The search of the logs of servers for tracebacks."""

from __future__ import annotations

from pathlib import Path

from tests.support.servers.server_logs import Logs

LINE = 'E1123 pb_stub.cc:700] "Traceback (most recent call last):\\n  File \\"model.py\\""\n'


def test_each_traceback_is_found_once(tmp_path: Path) -> None:
    log, other = tmp_path / "log", tmp_path / "other"
    logs = Logs()
    for given in (log, other, None):
        logs.add(given)
    assert logs.tracebacks() == []
    log.write_text("I1123 ready\n" + LINE)
    [found] = logs.tracebacks()
    assert found.startswith(f"{log}: E1123") and "\n  File" in found
    logs.add(log)  # the server starts again
    assert logs.tracebacks() == []
    log.write_text(log.read_text() + LINE)
    other.write_text(LINE)
    assert len(logs.tracebacks()) == 2
