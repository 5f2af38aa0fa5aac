"""tools/serve says how its server ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools import serve
from tools.triton_server import free_ports


class Ended:
    """A server that is ready, and then ends by itself."""

    def __init__(self, status: int) -> None:
        self.process = SimpleNamespace(wait=lambda timeout: status)
        self.families = {"some_family": Path("checkpoint")}
        self.stopped = False

    def start(self, timeout: float) -> None: ...

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize(("status", "expected"), [(0, 1), (-9, -9), (3, 3)])
def test_a_server_that_ends_by_itself_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int, expected: int
) -> None:
    server = Ended(status)

    def start(*given: Any, **options: Any) -> Ended:
        return server

    ports = [f"--{kind}-port={port}" for kind, port in zip(("grpc", "http", "metrics"), free_ports(3), strict=True)]
    monkeypatch.setattr(serve, "TritonServer", start)
    assert serve.main([f"--checkpoint={tmp_path}", f"--voices={tmp_path}", *ports]) == expected and server.stopped
    assert f"ended by itself, with status {status}" in capsys.readouterr().err
