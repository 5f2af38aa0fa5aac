"""The /metrics page of a running server."""

from __future__ import annotations

import re
import time
import urllib.request

from tests.support.waiting import WAIT
from tools.triton_server import TritonServer

LINE = re.compile(r"voice_clone_(\w+?)(?:\{(.*)\})? (\S+)")
GAUGES = ("talker_live_streams", "talker_waiting_streams", "code2wav_streams")


def series(server: TritonServer) -> list[tuple[str, dict[str, str], float]]:
    """Name without `voice_clone_`, labels and value of each series of ours."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=WAIT) as answer:
        lines = answer.read().decode().splitlines()
    found = [match.groups() for line in lines if (match := LINE.fullmatch(line))]
    return [(name, dict(re.findall(r'(\w+)="(.*?)"', labels or "")), float(value)) for name, labels, value in found]


def metric(server: TritonServer, name: str, family: str = "qwen3_tts", **labels: str) -> float:
    """The value of the one series of a name, without `voice_clone_`, of a family, with these labels and no other."""
    wanted = {"family": family, **labels}
    [value] = [value for each, found, value in series(server) if each == name and found == wanted]
    return value


def gauges(server: TritonServer) -> dict[str, float]:
    """How many streams the server's models hold, by the gauge and its family."""
    return {f"{name} of {labels['family']}": value for name, labels, value in series(server) if name in GAUGES}


def wait_until_quiet(server: TritonServer, seconds: float) -> None:
    """Wait until the models hold no stream. It looks five times: a killed client's requests may come after the first.

    Raises:
        AssertionError: they hold some after `seconds`, or there are no gauges.
    """
    quiet, deadline = 0, time.monotonic() + seconds
    while quiet < 5:
        found = gauges(server)
        quiet = 0 if any(found.values()) else quiet + 1
        assert found and time.monotonic() < deadline, found
        time.sleep(0.2)
