"""How fast a checkpoint speaks on this machine's processor: its own networks, as a server would run them."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from voice_clone import compute
from voice_clone.array_kinds import without_gradients
from voice_clone.errors import Unsupported
from voice_clone.settings import Settings, TalkerSettings
from voice_clone_server.diagnosis.speed import ROUNDS, Speed, decoder_seconds, fastest
from voice_clone_server.families.cards import code_of

REFERENCE, FRAMES = 64, 24  # frames of the prompt's reference; frames that are generated


def served_speed(
    family: str,
    checkpoint: Path,
    found: list[dict[str, Any]] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """A row as tools/doctor has them.

    Args:
        found: gets the row with the first round, which further ones replace.
        tell: gets what is being done.

    Raises:
        Unsupported: the settings ask for a GPU, which is not measured, or the family makes frames in another way.
        VoiceCloneError: the checkpoint cannot be served.
    """
    parameters = {"checkpoint_dir": str(checkpoint), "max_streams": "1"}
    given = Settings({"parameters": {name: {"string_value": value} for name, value in parameters.items()}})
    settings = TalkerSettings.of(given)
    if compute.device(settings) != "cpu":
        raise Unsupported("a GPU is not measured; set VOICE_CLONE_DEVICE=cpu, or take perf/gpu")
    decoder = importlib.import_module(f"{code_of(family)}.codec").load_decoder(given)
    if decoder.card.streams != "states":
        raise Unsupported(
            f"the decoder of {family} makes many frames at once, and the time of one is not measured; perf/load "
            "measures a server that has this checkpoint"
        )
    talker = importlib.import_module(f"{code_of(family)}.talker").load_talker(given)
    chunk = compute.prefill_chunk(settings)
    tell("compiling; the first time that takes about a minute ...")
    _speak(talker, chunk, 2)  # compiles, and touches the memory
    rounds = []
    for number in range(ROUNDS):
        tell(f"measuring {number + 1} of {ROUNDS}: {checkpoint.name} ...")
        position, frame = _speak(talker, chunk, FRAMES)
        talker.source.reset()
        rounds.append(Speed(frame, decoder_seconds(decoder.decoder, decoder.form.payload), position))
        speed, spread = fastest(rounds)
        row = {
            "model": checkpoint.name,
            "precision": compute.precision(settings),
            **asdict(speed),
            "real_time_factor": speed.real_time_factor(talker.frame_seconds),
            "spread": spread,
        }
        if found is not None:
            found[:] = [row]
    return row


@without_gradients
def _speak(talker: Any, chunk: int, frames: int) -> tuple[float, float]:
    """Seconds of a position of a prompt, and of a frame: the fastest, without the first, which costs less."""
    generator = talker.source
    generator.reset()
    request = replace(talker.example(REFERENCE, frames + 1), endless=True)
    length = left = generator.start(0, request)
    began = time.perf_counter()
    while left:
        count = min(left, chunk)
        generator.prefill({0: count})
        left -= count
    read = time.perf_counter()
    ends = [read]
    for _ in range(frames):
        generator.step([0])
        ends.append(time.perf_counter())
    return (read - began) / length, min(end - before for before, end in pairwise(ends[1:]))
