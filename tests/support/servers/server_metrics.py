"""The /metrics page of a running server."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable

from tests.support.waiting import WAIT, until
from voice_clone_server.triton_server import TritonServer

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


def ended_streams(server: TritonServer, family: str = "qwen3_tts") -> dict[str, float]:
    """How many streams of a talker have ended, by the reason. Each is counted some time after its last chunk."""
    found = [(labels, value) for name, labels, value in series(server) if name == "talker_streams_total"]
    return {labels["reason"]: value for labels, value in found if labels["family"] == family}


def until_cancelled(server: TritonServer, leave: Callable[[], int], family: str = "qwen3_tts") -> None:
    """Leave streams of a family until those of one call have all ended as cancelled, not by themselves.

    A client that is held up for a moment leaves too late, and then calls again.

    Args:
        leave: begins streams and leaves them; returns their number. No other streams may run meanwhile.

    Raises:
        AssertionError: they never do, or end as something else.
    """

    def is_cancelled() -> bool:
        before = ended_streams(server, family)
        count = leave()
        until(lambda: sum(ended_streams(server, family).values()) >= sum(before.values()) + count)
        return ended_streams(server, family)["cancelled"] == before["cancelled"] + count

    until(is_cancelled)


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
