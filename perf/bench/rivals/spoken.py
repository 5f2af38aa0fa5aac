"""What a process that speaks says of it. Needs only Python: it also runs in the environments of others."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WARM_UP_FRAMES = 2  # of the speech before the one that is measured


@dataclass(frozen=True)
class Spoken:
    """A speech, after a first one of `WARM_UP_FRAMES` frames.

    Attributes:
        version: of the package.
        loaded: by the monotonic clock, when the engine had loaded its model.
        warm_up: seconds of the first speech.
        positions: of the prompt.
        prompt: seconds of the talker over them.
        frame: seconds of talker and code predictor over a frame.
        decoder: seconds of the codec decoder over a frame.
        whole: seconds from the request to the last sample.
        megabytes: the most that the process had, with pages of files that it maps.
        floor: seconds that it takes to read the weights of a frame once, at the rate of all threads just then; None:
            not measured.
    """

    version: str
    loaded: float
    warm_up: float
    positions: int
    prompt: float
    frame: float
    decoder: float
    whole: float
    megabytes: float
    floor: float | None = None


def request() -> dict[str, Any]:
    """What the process is to speak: the JSON of its only argument."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    return given


def answer(spoken: Spoken) -> None:
    """Print it as the last line of the process."""
    print(json.dumps(asdict(spoken)), flush=True)


def peak_megabytes() -> float:
    """The most memory that this process has had."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return sum(1024 * float(line.split()[1]) / 1e6 for line in lines if line.startswith("VmHWM"))
