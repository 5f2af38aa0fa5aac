"""Says what this machine is, what of it a server uses, what is missing, what memory a server takes, how fast speech
will be, how many streams it speaks in time.

What is known is shown at once, and stays if Ctrl-C ends the rest. The speeds are those of long speech by one caller: a
measurement of about half a minute, without a checkpoint. The first time native code is compiled, which takes a minute
more. Each is the fastest of several runs in three rounds; `slowest` is how many times as long the slowest round took.
With --checkpoint they are that checkpoint's, at the precision that VOICE_CLONE_PRECISION names; Fish Speech, Voxtral
TTS and VoxCPM2 are measured in no other way, CosyVoice3 and OmniVoice not at all. A GPU is shown, not measured; if one
of its name was, its figures are shown. Exit status: 1 if a need of a server is not met.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from voice_clone_program.arguments import Parser

from voice_clone.errors import VoiceCloneError
from voice_clone.settings import PRECISIONS, ComputeSettings, Settings, VoiceSettings
from voice_clone_server.families.recognition import FamilyError, families_of
from voice_clone_server.preflight import check_checkpoints
from voice_clone_server.program import program
from voice_clone_server.stopping import Stopped, stoppable
from voice_clone_server.triton_server import MODELS

STEADY = 1.3  # times as long: what rounds on an idle machine may differ by
COMPILING = "; the first time it is compiled, for about a minute"

Show = Callable[[list[str]], None]
Tell = Callable[[str], None]
Works = Callable[[], Sequence[Any]]  # of `voice_clone_server.diagnosis.workload.Workload`s


def main(arguments: Sequence[str] | None = None, works: Works = list) -> int:
    """The command line. `works`: the models whose memory and speed are shown without a checkpoint."""
    parser = Parser(prog=program("doctor"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="measure this one, as a server would run it")
    parser.add_argument("--no-speed", action="store_true", help="measure nothing")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    given = parser.parse_args(arguments)
    try:
        with stoppable():
            found = examine(given.checkpoint, not given.no_speed, _keep if given.json else _show, _tell, works)
    except (FamilyError, VoiceCloneError) as error:
        _tell("")
        print(f"{program('doctor')}: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:  # before anything was known
        return stopped.status
    if given.json:
        print(json.dumps(found, indent=2))
    if found["stopped"]:
        print(f"{program('doctor')}: stopped; what was measured until then is above", file=sys.stderr)
        return int(found["stopped"])
    return int(any(need["needed"] and not need["there"] for need in found["needs"]))


def _keep(lines: list[str]) -> None:
    """For JSON, which is printed at the end."""


def _show(lines: list[str]) -> None:
    print("\n".join(lines), flush=True)


def _tell(text: str) -> None:
    """What is being done; on a terminal each such line takes the place of the one before."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def examine(
    checkpoint: Path | None,
    measure: bool,
    show: Show = _keep,
    tell: Tell = lambda text: None,
    works: Works = list,
) -> dict[str, Any]:
    """All findings, fit for JSON: `machine`, `hints`, `needs`, `memory`, `speed` and `sizing` (rows of models).

    Args:
        show: gets the lines of each section as soon as it is known.
        tell: gets what is being done, and at the end of it an empty text.
        works: makes the models whose memory and speed are shown without a checkpoint.

    Returns: the findings. `stopped` is 0, or the exit status if a signal ended the measurement before its end.
    """
    if checkpoint is not None:
        [(family, folder)] = families_of([checkpoint], [MODELS]).items()
        check_checkpoints({family: folder}, [MODELS])
    tell("looking at the machine ...")
    from voice_clone_server.diagnosis import sizing
    from voice_clone_server.diagnosis.machine import hints, machine
    from voice_clone_server.diagnosis.memory import server_bytes, stream_bytes
    from voice_clone_server.diagnosis.needs import needs

    settings = Settings({})
    facts = machine(ComputeSettings.of(settings))
    found: dict[str, Any] = {
        "machine": facts,
        "hints": hints(facts, measure),
        "needs": [dataclasses.asdict(need) for need in needs(VoiceSettings.of(settings))],
        "memory": [],
        "speed": [],
        "stopped": 0,
    }
    tell("")
    show(machine_lines(found))
    show(need_lines(found))
    models = works()
    for work in models:
        for precision in PRECISIONS:
            memory = {"server_bytes": server_bytes(work, precision), "stream_bytes": stream_bytes(work)}
            found["memory"].append({"model": work.name, "precision": precision, **memory})
    show(memory_lines(found))
    try:
        if measure and checkpoint is not None:
            from voice_clone_server.diagnosis.served import served_speed

            tell(f"loading {folder.name} ...")
            served_speed(family, folder, found["speed"], tell)
        elif measure and models:
            _measure(models, found["speed"], tell)
    except Stopped as stopped:
        found["stopped"] = stopped.status
    tell("")
    found["sizing"] = sizing.as_json(sizing.rows_here(facts, found["speed"]))
    show(speed_lines(found))
    return found


def _measure(works: Sequence[Any], found: list[dict[str, Any]], tell: Tell) -> None:
    """The speed of each model that can be measured without a checkpoint, in each precision."""
    from voice_clone.native.thread_pool import leave_threads_to_native_code
    from voice_clone_server.diagnosis.speed import ROUNDS, Measurement, Speed, fastest

    leave_threads_to_native_code()
    rows = [(work, pace, precision) for work in works if (pace := work.pace) for precision in PRECISIONS]
    speeds: list[list[Speed]] = [[] for _ in rows]
    for number in range(ROUNDS):
        measurement = Measurement(rows[0][0].predictor)
        for index, (work, pace, precision) in enumerate(rows):
            count = number * len(rows) + index + 1
            compiling = "" if number else COMPILING
            tell(f"measuring {count} of {ROUNDS * len(rows)}: {work.name} {precision}{compiling} ...")
            speeds[index].append(measurement.speed(work, pace, precision))
            best, spread = fastest(speeds[index])
            row = {"model": work.name, "precision": precision, **dataclasses.asdict(best)}
            factor = best.real_time_factor(pace.frame_seconds)
            found[index : index + 1] = [{**row, "real_time_factor": factor, "spread": spread}]


def lines(found: dict[str, Any]) -> list[str]:
    """The findings for a terminal."""
    return [*machine_lines(found), *need_lines(found), *memory_lines(found), *speed_lines(found)]


def machine_lines(found: dict[str, Any]) -> list[str]:
    """What the machine is, and what of it a server uses."""
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
        ("computes on", f"{facts['device']}, {'no torch' if facts['torch'] is None else 'torch ' + facts['torch']}"),
    ]
    return ["Machine", *(f"  {name:14}{value}" for name, value in rows), *(f"  ! {hint}" for hint in found["hints"])]


def need_lines(found: dict[str, Any]) -> list[str]:
    """What a server needs, and whether it is there."""
    lines = ["", "Needs"]
    for need in found["needs"]:
        state = "ok" if need["there"] else "MISSING" if need["needed"] else "no"
        lines.append(f"  {need['name']:18}{state:9}{need['detail']}")
    return lines


def speed_lines(found: dict[str, Any]) -> list[str]:
    """What was measured, and what follows for streams."""
    from voice_clone_server.diagnosis import sizing

    lines = []
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
    return [*lines, *sizing.lines(found["machine"], found["sizing"])]


def memory_lines(found: dict[str, Any]) -> list[str]:
    """What a server takes."""
    if not found["memory"]:
        return []
    lines = ["", f"Memory on a CPU{'':16}{'idle server':>14}{'a minute of speech':>21}"]
    for row in found["memory"]:
        server, stream = _gb(row["server_bytes"]), _gb(row["stream_bytes"])
        lines.append(f"  {row['model']:20}{row['precision']:9}{server:>14}{'+ ' + stream:>21}")
    return lines


def _gb(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e9:.1f} GB"


if __name__ == "__main__":
    sys.exit(main())
