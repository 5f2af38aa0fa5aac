"""Says what this machine is, what of it a server uses, what is missing, how fast speech will be, how many streams it
speaks in time, what memory a server takes.

The speeds are those of long speech by one caller: a measurement of about half a minute, without a checkpoint. The first
time native code is compiled, which takes a minute more. Each is the fastest of several runs in three rounds; `slowest`
is how many times as long the slowest round took. With --checkpoint they are that checkpoint's, at the precision
that VOICE_CLONE_PRECISION names; Fish Speech, Voxtral TTS and VoxCPM2 are measured in no other way, CosyVoice3 and
OmniVoice not at all. A GPU is shown, not measured; if one of its name was, its figures are shown. Exit status: 1 if a
need of a server is not met.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.diagnosis import sizing
from tools.diagnosis.machine import hints, machine
from tools.diagnosis.memory import server_bytes, stream_bytes
from tools.diagnosis.needs import needs
from tools.diagnosis.served import served_speed
from tools.diagnosis.speed import ROUNDS, Measurement, fastest
from tools.families.recognition import FamilyError, families_of
from tools.families.toolkit import families_with, workloads
from tools.triton_server import MODELS
from voice_clone.errors import VoiceCloneError
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.settings import PRECISIONS, ComputeSettings, Settings, VoiceSettings

STEADY = 1.3  # times as long: what rounds on an idle machine may differ by


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="tools/doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="measure this one, as a server would run it")
    parser.add_argument("--no-speed", action="store_true", help="measure nothing")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    given = parser.parse_args(arguments)
    try:
        found = examine(given.checkpoint, not given.no_speed)
    except (FamilyError, VoiceCloneError) as error:
        print(f"tools/doctor: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=2) if given.json else "\n".join(lines(found)))
    return int(any(need["needed"] and not need["there"] for need in found["needs"]))


def examine(checkpoint: Path | None, measure: bool) -> dict[str, Any]:
    """All findings, fit for JSON: `machine`, `hints`, `needs`, `speed`, `sizing` and `memory` (rows of models)."""
    settings = Settings({})
    facts = machine(ComputeSettings.of(settings))
    found: dict[str, Any] = {
        "machine": facts,
        "hints": hints(facts, measure),
        "needs": [dataclasses.asdict(need) for need in needs(VoiceSettings.of(settings))],
        "speed": [],
        "memory": [],
    }
    works = [work for family in families_with("workloads") for work in workloads(family).values()]
    for work in works:
        for precision in PRECISIONS:
            memory = {"server_bytes": server_bytes(work, precision), "stream_bytes": stream_bytes(work)}
            found["memory"].append({"model": work.name, "precision": precision, **memory})
    if measure and checkpoint is not None:
        [(family, folder)] = families_of([checkpoint], [MODELS]).items()
        found["speed"].append(served_speed(family, folder))
    elif measure:
        leave_threads_to_native_code()
        rows = [(work, pace, precision) for work in works if (pace := work.pace) for precision in PRECISIONS]
        rounds = []
        for _ in range(ROUNDS):
            measurement = Measurement(rows[0][0].predictor)
            rounds.append([measurement.speed(*row) for row in rows])
        for (work, pace, precision), speeds in zip(rows, zip(*rounds, strict=True), strict=True):
            speed, spread = fastest(speeds)
            row = {"model": work.name, "precision": precision, **dataclasses.asdict(speed)}
            factor = speed.real_time_factor(pace.frame_seconds)
            found["speed"].append({**row, "real_time_factor": factor, "spread": spread})
    found["sizing"] = sizing.as_json(sizing.rows_here(facts, found["speed"]))
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """The findings for a terminal."""
    facts = found["machine"]
    quota = "" if facts["core_quota"] is None else f", {facts['core_quota']:g} of them by the container's limit"
    limit = "" if facts["memory_limit_bytes"] is None else f", the container's limit {_gb(facts['memory_limit_bytes'])}"
    gpu = facts["gpu"]
    rows = [
        ("processor", facts["processor"]),
        ("instructions", ", ".join(facts["instructions"]) or "none of those that help"),
        ("used", f"{facts['used']}, vectors of {facts['vector_bits']} bits, compiled for {facts['compiled_for']}"),
        ("cores", f"{facts['cores']}{quota}; {facts['threads']} threads compute"),
        ("memory", f"{_gb(facts['memory_bytes'])}, {_gb(facts['memory_available_bytes'])} available{limit}"),
        ("GPU", "none that torch can use" if gpu is None else f"{gpu['name']}, {_gb(gpu['memory_bytes'])}"),
        ("computes on", f"{facts['device']}, torch {facts['torch']}"),
    ]
    lines = ["Machine", *(f"  {name:14}{value}" for name, value in rows), *(f"  ! {hint}" for hint in found["hints"])]
    lines += ["", "Needs"]
    for need in found["needs"]:
        state = "ok" if need["there"] else "MISSING" if need["needed"] else "no"
        lines.append(f"  {need['name']:18}{state:9}{need['detail']}")
    if found["speed"]:
        lines += ["", f"Speed{'':26}{'prompt':>13}{'frame':>9}{'decoder':>9}   1 s of speech takes   slowest"]
        for row in found["speed"]:
            position, frame, decoder = (1e3 * row[name] for name in ("position", "frame", "decoder"))
            lines.append(
                f"  {row['model']:20}{row['precision']:7}{position:7.2f} ms/token{frame:6.0f} ms{decoder:6.0f} ms"
                f"{row['real_time_factor']:8.2f} s{row['spread']:19.2f} x"
            )
        lines.append(
            "  Speech plays without gaps where 1 s of it takes less than 1 s. Several callers share the machine."
        )
        if (spread := max(row["spread"] for row in found["speed"])) > STEADY:
            lines.append(
                f"  ! the slowest round took up to {spread:.1f} times as long: other programs compute, or the "
                "processor changes its clock; measure again when the machine is idle"
            )
    lines += sizing.lines(facts, found["sizing"])
    lines += ["", f"Memory on a CPU{'':16}{'idle server':>14}{'a minute of speech':>21}"]
    for row in found["memory"]:
        server, stream = _gb(row["server_bytes"]), _gb(row["stream_bytes"])
        lines.append(f"  {row['model']:20}{row['precision']:9}{server:>14}{'+ ' + stream:>21}")
    return lines


def _gb(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e9:.1f} GB"


if __name__ == "__main__":
    sys.exit(main())
