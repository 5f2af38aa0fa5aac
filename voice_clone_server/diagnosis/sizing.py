"""Tell how many streams a machine speaks in time, from measurements on other machines and on this one.

docs/sizing.md has the same rows, and the formulas for machines that have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

EPYC = "2 cores of an AMD EPYC with AVX-512"
H200 = "NVIDIA H200"


@dataclass(frozen=True)
class Measurement:
    """A measurement.

    Attributes:
        machine: the name of a GPU, as torch has it; else cores and processor.
        model: its usual name.
        precision: of the talker.
        streams: how many at once.
        audio: seconds of speech a second, of all streams together.
        through: `engine` for only talker and decoder in one process, `server` for a whole server.
        result: file in perf/records/results; empty for this machine, now.
    """

    machine: str
    model: str
    precision: str
    streams: int
    audio: float
    through: str
    result: str = ""

    @property
    def in_time(self) -> bool:
        """Whether each stream is at least as fast as it is heard."""
        return self.audio >= self.streams


ROWS = (
    Measurement(EPYC, "Qwen3-TTS 0.6B", "fp32", 1, 0.287, "engine", "compare_official.json"),
    Measurement(EPYC, "Qwen3-TTS 0.6B", "bf16", 1, 0.51, "engine", "compare_official.json"),
    Measurement(EPYC, "Qwen3-TTS 0.6B", "int8", 1, 0.76, "engine", "compare_official.json"),
    Measurement(EPYC, "Qwen3-TTS 0.6B", "int4", 1, 1.3, "engine", "compare_official_8s.json"),
    Measurement(EPYC, "Qwen3-TTS 0.6B", "fp32", 4, 0.58, "engine", "compare_official.json"),
    Measurement(EPYC, "Qwen3-TTS 0.6B", "bf16", 4, 1.08, "engine", "compare_official.json"),
    Measurement(EPYC, "Qwen3-TTS 0.6B", "int8", 4, 1.27, "engine", "compare_official.json"),
    Measurement(EPYC, "Qwen3-TTS 0.6B", "int4", 4, 1.71, "engine", "compare_official.json"),
    Measurement(EPYC, "Qwen3-TTS 0.6B", "fp32", 1, 0.375, "server", "0.6b.json"),
    Measurement(EPYC, "Qwen3-TTS 0.6B", "fp32", 4, 0.787, "server", "0.6b.json"),
    Measurement(EPYC, "Qwen3-TTS 1.7B", "int4", 1, 0.67, "engine", "compare_official_1.7b.json"),
    Measurement(EPYC, "Pocket TTS 336M", "int8", 1, 3.13, "engine", "compare_pocket_official.json"),
    Measurement(EPYC, "Pocket TTS 336M", "int8", 2, 4.08, "engine", "compare_pocket_official.json"),
    Measurement(EPYC, "Pocket TTS 100M", "int8", 1, 6.19, "engine", "compare_pocket_official.json"),
    Measurement(EPYC, "Pocket TTS 100M", "int8", 8, 10, "engine", "compare_pocket_official.json"),
    Measurement(EPYC, "Pocket TTS 100M", "int8", 16, 10.9, "engine", "compare_pocket_official.json"),
    Measurement(EPYC, "Pocket TTS 18M", "int8", 16, 27.1, "engine", "compare_pocket_official.json"),
    Measurement(EPYC, "Pocket TTS 7M", "int8", 16, 33.1, "engine", "compare_pocket_official.json"),
    Measurement(EPYC, "Pocket TTS 2M", "int8", 16, 55.9, "engine", "compare_pocket_official.json"),
    Measurement(H200, "Qwen3-TTS 0.6B", "bf16", 1, 10.2, "engine", "gpu_0.6b.json"),
    Measurement(H200, "Qwen3-TTS 0.6B", "bf16", 8, 65.1, "engine", "gpu_0.6b.json"),
    Measurement(H200, "Qwen3-TTS 0.6B", "bf16", 64, 189, "engine", "gpu_0.6b.json"),
)


def rows_here(facts: Mapping[str, Any], speed: Sequence[Mapping[str, Any]]) -> list[Measurement]:
    """The rows of this machine.

    Args:
        facts: of `machine.machine`.
        speed: what was measured on its processor, with `model`, `precision` and `real_time_factor`.

    Returns:
        The measurements on a GPU of this name if a server computes on the GPU, else one for each of `speed`. None if
        nothing was measured.
    """
    if facts["device"] != "cpu":
        return [row for row in ROWS if facts["gpu"] is not None and row.machine == facts["gpu"]["name"]]
    machine = f"{facts['threads']} threads of {facts['processor']}"
    return [
        Measurement(machine, row["model"], row["precision"], 1, 1 / row["real_time_factor"], "engine") for row in speed
    ]


def as_json(rows: Sequence[Measurement]) -> list[dict[str, Any]]:
    return [{**asdict(row), "in_time": row.in_time} for row in rows]


def lines(facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows, of `as_json`, for a terminal."""
    shown = ["", f"Sizing{'':25}streams   seconds of speech a second"]
    for row in rows:
        streams, audio = row["streams"], row["audio"]
        times = f"{audio / streams:.1f} times as fast as heard" if row["in_time"] else "too slow to be heard in time"
        where = f"measured on such a card, {row['through']}" if row["result"] else "measured now"
        shown.append(f"  {row['model']:20}{row['precision']:7}{streams:9}{audio:9.2f}   {times}; {where}")
    if not rows and facts["device"] != "cpu":
        shown.append(f"  {facts['gpu']['name'] if facts['gpu'] else 'this GPU'}: not measured; perf/gpu measures it")
    elif not rows:
        shown.append("  not measured")
    elif facts["device"] == "cpu":
        shown.append("  Several streams at once: not measured here. perf/load measures a whole server.")
    return [*shown, "  docs/sizing.md says what follows for streams, machines and costs."]
