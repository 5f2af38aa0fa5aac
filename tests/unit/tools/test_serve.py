"""tools/serve says how its server ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from voice_clone_server import restarts, serve
from voice_clone_server.preflight import occupied
from voice_clone_server.server_log import shown
from voice_clone_server.triton_server import free_ports


class Ended:
    """A server that is ready, and then ends by itself, again and again."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.process = SimpleNamespace(poll=lambda: self._statuses.pop(0))
        self.families = {"some_family": Path("checkpoint")}
        self.stopped = False
        self.restarts = 0

    def start(self, timeout: float) -> None: ...

    def restart(self, timeout: float, again: Callable[[int], bool]) -> None:
        self.restarts += 1

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize(
    ("statuses", "again", "words", "expected"),
    [
        ([0], 0, [], 1),  # somebody has asked it to
        ([-9, 3, 0], 2, [], 1),
        ([-9] * 6, 5, [], -9),
        ([-9, 3], 1, ["--restarts=1"], 3),
        ([-9], 0, ["--restarts=0"], -9),
    ],
)
def test_a_server_that_ends_by_itself_is_started_again_some_times(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    statuses: list[int],
    again: int,
    words: list[str],
    expected: int,
) -> None:
    server = Ended(*statuses)

    def start(*given: Any, **options: Any) -> Ended:
        return server

    ports = [f"--{kind}-port={port}" for kind, port in zip(("grpc", "http", "metrics"), free_ports(3), strict=True)]
    monkeypatch.setattr(serve, "TritonServer", start)
    assert serve.main([f"--checkpoint={tmp_path}", f"--voices={tmp_path}", *ports, *words]) == expected
    assert server.stopped and server.restarts == again
    said = capsys.readouterr().err
    assert all(f"ended by itself, with status {status}" in said for status in statuses)
    assert said.count("starting it again") == said.count("ready again") == again


def test_restarts_long_ago_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(restarts, "WITHIN", 0.0)
    server, ports = Ended(*[-9] * 20, 0), free_ports(3)
    monkeypatch.setattr(serve, "TritonServer", lambda *given, **options: server)
    options = [f"--{kind}-port={port}" for kind, port in zip(("grpc", "http", "metrics"), ports, strict=True)]
    assert serve.main([f"--checkpoint={tmp_path}", f"--voices={tmp_path}", *options]) == 1
    assert server.restarts == 20 and "(1 of 5)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gateway-max-requests", "5"], "--gateway-max-requests belongs to --gateway PORT"),
        (["--gateway", "0", "--gateway-page", "false"], "--gateway-page belongs to --gateway PORT"),
        (["--gateway", "PORT", "--gateway-max-requests=many"], "argument --gateway-max-requests: invalid int value"),
        (["--gateway", "PORT", "--gateway-max-requests"], "argument --gateway-max-requests: expected one argument"),
        (["--gateway", "PORT", "--gateway-no-such", "1"], "unrecognized arguments: --gateway-no-such"),
        (["--gateway", "PORT", "--gateway-triton", "a:1"], "--gateway-triton: tools/serve sets it itself"),
        (["--gateway", "PORT", "--gateway-sockets=3"], "--gateway-sockets: tools/serve sets it itself"),
        (["--gateway", "PORT", "--gateway-server-lock=x"], "--gateway-server-lock: tools/serve sets it itself"),
        (["--gateway", "PORT", "--gateway-port=1"], "--gateway-port: tools/serve sets it itself"),
    ],
)
def test_options_of_the_gateway_that_are_wrong(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    grpc, http, metrics, gateway = map(str, free_ports(4))
    ports = ["--grpc-port", grpc, "--http-port", http, "--metrics-port", metrics]
    with pytest.raises(SystemExit) as caught:
        serve.parse(["--checkpoint=a", *ports, *(gateway if word == "PORT" else word for word in words)])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") < 15


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["DIR"], "DIR: give a checkpoint as --checkpoint DIR, and options of tritonserver after --"),
        (["--checkpoint", "a", "b", "--", "--log-verbose=1"], "b: give a checkpoint as --checkpoint b"),
        (
            ["--checkpoint=a", "--log-verbose=1"],
            "unrecognized arguments: --log-verbose=1; tritonserver's",
        ),
        (["--checkpont", "a"], "did you mean --checkpoint?"),
        (["--checkpoint=a", "--restarts=-1"], "0 or more"),
        (["--checkpoint=a", "--load-seconds=nan"], "1 or more"),
        (["--checkpoint=a", "--idle-minutes=nan"], "0 or more"),
        (["--checkpoint=a", "--rest-minutes=-1"], "0 or more"),
        (["--checkpoint=a", "--rest-minutes=inf"], "--rest-minutes is inf; it must be 0 or more, and finite"),
        (["--checkpoint=a", "--idle-minutes=5"], "--idle-minutes needs --gateway PORT"),
        (["--checkpoint=a", "--grpc-port=0"], "0 is no port"),
    ],
)
def test_words_that_are_wrong(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        serve.parse(words)
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_a_folder_of_voices_that_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in (file, file / "voices", tmp_path / "link"):
        assert "is no folder" in str(occupied(place, []))
    assert occupied(tmp_path / "new" / "voices", []) is None


def test_options_of_the_gateway_and_of_the_server() -> None:
    grpc, http, metrics, gateway = map(str, free_ports(4))
    ports = ["--grpc-port", grpc, "--http-port", http, "--metrics-port", metrics]
    words = ["--gateway-max-requests", "5", "--gateway", gateway, "--gateway-cors-origins=*", "--host", "127.0.0.2"]
    _, given = serve.parse([*ports, *words, "--", "--log-verbose=1", "--gateway-x"])
    assert given.options == ["--log-verbose=1", "--gateway-x"]
    assert given.gateway_settings.max_requests == 5 and given.gateway_settings.cors_origins == ("*",)
    assert given.gateway_settings.host == "127.0.0.2"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('I1122 20:24:04.4 12135 model_lifecycle.cc:472] "loading: qwen3_tts:1"', None),
        (
            'I1122 20:24:04.4 12135 telemetry.py:104] "speaker_cache: restored 0 voices"',
            "speaker_cache: restored 0 voices",
        ),
        ('E1122 20:24:04.4 12135 telemetry.py:100] "it broke"', "error: it broke"),
        ('W1122 20:24:04.4 12135 http_server.cc:1] "slow"', "warning: slow"),
        ("| Model | Version |", None),
        ("+-------+", None),
        ("", None),
        ("Signal (15) received.", None),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("free(): invalid pointer", "free(): invalid pointer"),
        ("Error: Failed to initialize NVML", None),
        ('E1122 20:24:04.4 12135 server.cc:241] "CudaDriverHelper has not been initialized."', None),
    ],
)
def test_what_is_shown_of_the_log(line: str, expected: str | None) -> None:
    assert shown(line) == expected
    if "NVML" in line or "Cuda" in line:
        assert shown(line, gpu=True)  # where there is one, it is a fault
