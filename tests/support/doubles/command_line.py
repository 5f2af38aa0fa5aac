"""The command line against the protocol double, and a voice that the double answers with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from voice_clone_command import cli

from tests.support.doubles.triton_double import Server

VOICE = {
    "name": "Ada",
    "generation": 3,
    "duration": 2.5,
    "artifacts": [{"model_type": "qwen3_tts", "mode": "icl", "state": "ready"}],
}
LINE = "Ada\tgeneration 3\t2.5 s\tqwen3_tts icl ready\n"
Run = Callable[..., int]


def in_process(triton: Server) -> Run:
    """Runs `voice-clone` against the double, in this process."""
    return lambda *arguments: cli.main(["--url", triton.url, *map(str, arguments)])


def answer(triton: Server, value: Any, artifacts: bytes = b"") -> None:
    triton.answer = lambda inputs: {"result": json.dumps(value).encode(), "artifacts": artifacts}
