"""How fast a checkpoint speaks on this machine's processor: its own networks, as a server would run them."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import torch

from tools.diagnosis.speed import decoder_seconds
from voice_clone import compute
from voice_clone.errors import Unsupported
from voice_clone.settings import Settings

REFERENCE, FRAMES = 64, 24  # frames of the prompt's reference; frames that are generated


def served_speed(family: str, checkpoint: Path) -> dict[str, Any]:
    """A row as tools/doctor has them.

    Raises:
        Unsupported: the settings ask for a GPU, which is not measured.
        VoiceCloneError: the checkpoint cannot be served.
    """
    parameters = {"checkpoint_dir": str(checkpoint), "max_streams": "1"}
    settings = Settings({"parameters": {name: {"string_value": value} for name, value in parameters.items()}})
    if compute.device(settings) != "cpu":
        raise Unsupported("a GPU is not measured; set VOICE_CLONE_DEVICE=cpu, or take perf/gpu")
    talker = importlib.import_module(f"voice_clone.families.{family}.talker_stage").load_talker(settings)
    decoder = importlib.import_module(f"voice_clone.families.{family}.decoder_stage").load_decoder(settings)
    generator, chunk = talker.source, compute.prefill_chunk(settings)
    with torch.inference_mode():
        _speak(talker, chunk, 2)  # compiles, and touches the memory
        position, frame = _speak(talker, chunk, FRAMES)
    generator.reset()
    decoding = decoder_seconds(decoder.decoder, decoder.form.payload.width)
    return {
        "model": checkpoint.name,
        "precision": compute.precision(settings),
        "position": position,
        "frame": frame,
        "decoder": decoding,
        "real_time_factor": (frame + decoding) / talker.frame_seconds,
    }


def _speak(talker: Any, chunk: int, frames: int) -> tuple[float, float]:
    """Seconds of a position of a prompt, and of a frame."""
    generator = talker.source
    generator.reset()
    length = left = generator.start(0, talker.example(REFERENCE, frames + 1))
    began = time.perf_counter()
    while left:
        count = min(left, chunk)
        generator.prefill({0: count})
        left -= count
    read = time.perf_counter()
    for _ in range(frames):
        generator.step([0])
    return (read - began) / length, (time.perf_counter() - read) / frames
