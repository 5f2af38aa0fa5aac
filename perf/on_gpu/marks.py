"""The marks that the project set itself for a GPU, beside what `perf/gpu` measured: the 0.6B shape on an H200."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perf.bench import report
from perf.on_gpu.engines import SERVED

Found = dict[str, Any]

FAMILY = "qwen3_tts"


@dataclass(frozen=True)
class Mark:
    """A figure that is wanted.

    Attributes:
        figure: takes it out of what `perf/gpu` found; raises LookupError where that was not measured.
        wanted: at most so much; with `least`, at least.
    """

    name: str
    figure: Callable[[Found], float]
    wanted: float
    least: bool = False


def of(found: Found) -> list[Found]:
    """Each mark with its figure and whether it is met; both None where nothing was measured."""
    return [_judged(mark, found) for mark in MARKS]


def show(judged: list[Found]) -> None:
    words = {None: "not measured", True: "met", False: "missed"}
    rows = [[each["mark"], each["figure"], each["wanted"], words[each["met"]]] for each in judged]
    print("\n" + report.table(["mark (0.6b, one H200)", "figure", "wanted", ""], rows))


def _judged(mark: Mark, found: Found) -> Found:
    try:
        figure = mark.figure(found)
    except LookupError:
        figure = None
    met = None if figure is None else bool(figure >= mark.wanted if mark.least else figure <= mark.wanted)
    wanted = f"{'>=' if mark.least else '<='} {mark.wanted:g}"
    return {"mark": mark.name, "figure": figure, "wanted": wanted, "met": met}


def _level(found: Found, load: str) -> Found:
    levels: list[Found] = found["server"]["load"]
    for level in levels:
        if level["load"] == load:
            return level
    raise LookupError(load)


def _equal(found: Found) -> float:
    """The least share of equal codes: of graphs and eager steps, and of servers on GPU and CPU."""
    pair = found["codes"]
    shares = [each["equal_before"] for each in (*pair["encoders"].values(), pair["talkers"]) if "equal_before" in each]
    shares.append(found["figures"]["fp32"]["equal"]["codes"])
    return float(min(shares))


MARKS = (
    Mark("codes that are equal in fp32, %: graphs, eager, CPU", lambda found: 100 * _equal(found), 100.0, least=True),
    Mark(
        "a frame at 1 stream, ms", lambda found: 1e3 * found["figures"]["bf16"]["times"][SERVED][1]["frame"]["p50"], 3
    ),
    Mark("first audio p95 at 1 request/s, ms", lambda found: 1e3 * _level(found, "1/s")["first_audio_s"]["p95"], 26),
    Mark("first audio p95 at 20 requests/s, ms", lambda found: 1e3 * _level(found, "20/s")["first_audio_s"]["p95"], 60),
    Mark("audio s/s at 64 callers", lambda found: _level(found, "64 callers")["audio_seconds_per_second"], 400, True),
    Mark("chunks in time at 20 requests/s, %", lambda found: 100 * _level(found, "20/s")["in_time"], 99.9, True),
    Mark("growth of memory over minutes of load, %", lambda found: 100 * found["server"]["minutes"]["growth"], 1),
)
