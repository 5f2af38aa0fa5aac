"""What both clients do to design a voice: which model speaks, with which seeds, and what is kept of a candidate."""

from __future__ import annotations

import io
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidArgument, Unsupported
from .types import Candidate, Family, KeepOptions
from .wav import WavWriter

KIND = "_voice_design"  # ends the name of a model that was made for it
MOST_SEEDS = 16


def seeds_of(given: int | Sequence[int]) -> list[int]:
    """Return the given seeds, or so many new ones.

    Raises:
        InvalidArgument: there are none, too many, or two alike.
    """
    seeds = [secrets.randbits(32) for _ in range(given)] if isinstance(given, int) else list(given)
    if not 1 <= len(seeds) <= MOST_SEEDS or len(set(seeds)) < len(seeds):
        raise InvalidArgument(f"`seeds` must be 1 to {MOST_SEEDS} different ones")
    return seeds


def designer(families: Mapping[str, Family]) -> str:
    """Choose the family that makes voices of descriptions: one that was made for it, else the first one that can.

    Raises:
        Unsupported: there is none.
    """
    able = [name for name, family in families.items() if family.voiceless and family.instructions_option is not None]
    for name in sorted(able, key=lambda name: not name.endswith(KIND)):
        return name
    raise Unsupported("no model of this server makes voices of descriptions; serve one such as Qwen3-TTS VoiceDesign")


def instructions_option(model: str, family: Family) -> str:
    """Return the option of this family that takes the description of a voice.

    Raises:
        Unsupported: the family makes no voices of descriptions.
    """
    if not family.voiceless or family.instructions_option is None:
        raise Unsupported(f"{model} makes no voices of descriptions; leave `model` out for one that does")
    return family.instructions_option


def check_description(description: str) -> None:
    """Refuse a description without words.

    Raises:
        InvalidArgument: it is blank.
    """
    if not description.strip():
        raise InvalidArgument("`description` is blank; describe a voice in words")


def orders(
    description: str,
    seeds: int | Sequence[int],
    model: str | None,
    families: Mapping[str, Family],
    knobs: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return the arguments of `speak` for each candidate.

    Raises:
        InvalidArgument: the description is blank; and as `seeds_of`.
        Unsupported: the family cannot do it, or none can.
    """
    check_description(description)
    model = model or designer(families)
    option = instructions_option(model, families.get(model, Family()))
    options = {**(knobs.get("options") or {}), option: description}
    fixed = {**knobs, "options": options, "model": model, "require_whole": True}
    return [{**fixed, "seed": seed} for seed in seeds_of(seeds)]


def candidate(
    sound: tuple[NDArray[np.float32], int], text: str, description: str, order: Mapping[str, Any]
) -> Candidate:
    """Make a candidate of what was spoken for an order."""
    return Candidate(*sound, text, description, order["model"], order["seed"])


def upload_of(candidate: Candidate, options: KeepOptions) -> dict[str, Any]:
    """Return the arguments of `upload` for a candidate: its sound as a WAV, its words, and where it comes from."""
    return {
        **options,
        "audio": wav(candidate.samples, candidate.sample_rate),
        "reference_text": candidate.text,
        "design": candidate.description,
        "design_model": candidate.model,
        "design_seed": candidate.seed,
    }


def wav(samples: NDArray[np.float32], sample_rate: int) -> bytes:
    """Make a WAV file of samples."""
    file = io.BytesIO()
    with WavWriter(file, sample_rate) as writer:
        writer.write(samples)
    return file.getvalue()
