"""Directions: named vectors that a speech adds to the speaker embedding of its voice, as in the style `joy:0.6`.

A checkpoint's folder may have a folder `directions` with safetensors files. Each tensor is a vector, float32 [dimension
of the embedding], and its name is that of the direction. The metadata have the `fingerprint` of the voice encoder whose
embeddings the vectors were made of and, if it is not 1, the `scale` of the vectors.

As they are files of the checkpoint, the digest of what makes a server's sound (`synthesizer`) has them. What a talker
keeps of a voice it finds by the embedding that it has read, so voices with and without a direction never mix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported, quoted
from voice_clone.speakers.record import EMBEDDING, style_name
from voice_clone.speech import ResolvedVoice, SpeechRequest

FOLDER = "directions"
MOST = 64
STRONGEST = 3.0


class Direction(NamedTuple):
    """A vector in the scale of its file, and the fingerprint of the voice encoder that it belongs to."""

    vector: NDArray[np.float32]
    fingerprint: str


def read_directions(checkpoint: Path) -> dict[str, Direction]:
    """The directions in the folder of a checkpoint, by name.

    Raises:
        CheckpointError: a file is none of directions, or there are too many, or two of one name.
    """
    found: dict[str, Direction] = {}
    for path in sorted((checkpoint / FOLDER).glob("*.safetensors")):
        try:
            with safe_open(path, "numpy") as file:
                said = file.metadata() or {}
                vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            scale = np.float32(said.get("scale", "1"))
            for name, vector in vectors.items():
                wrong = vector.dtype != np.float32 or vector.ndim != 1 or style_name(name) != name or name in found
                if wrong or not np.isfinite(scale * vector).all():
                    raise ValueError(name)
                found[name] = Direction(scale * vector, said["fingerprint"])
        except (SafetensorError, OSError, LookupError, TypeError, ValueError, InvalidArgument):
            raise CheckpointError(
                f"{FOLDER}/{path.name}: not a file of directions, or it has a name that another one has; "
                "voice-clone direction make writes such files"
            ) from None
    if len(found) > MOST:
        raise CheckpointError(f"{FOLDER}: there are {len(found)} directions; at most {MOST} are allowed")
    return found


def without_directions(speech: SpeechRequest) -> tuple[SpeechRequest, dict[str, float]]:
    """A speech without the directions in its style, and their strengths: of `happy,neutral+joy:0.6` the style is
    `happy,neutral`. A style may have only directions.

    Raises:
        InvalidArgument: one is malformed, out of range, or there twice.
    """
    clips, *given = (speech.style or "").split("+")
    if ":" in clips:
        clips, given = "", [clips, *given]
    strengths: dict[str, float] = {}
    for each in given:
        name, _, number = each.lower().partition(":")
        try:
            strength = float(number)
        except ValueError:
            strength = math.nan
        if not abs(strength) <= STRONGEST or (name := name.strip()) in strengths:
            raise InvalidArgument(
                f"`style` has {quoted(each)}; a direction is its name and a strength from -{STRONGEST:g} to "
                f"{STRONGEST:g}, such as joy:0.6, without a plus sign, and comes once"
            )
        strengths[name] = strength
    return (replace(speech, style=clips or None) if strengths else speech), strengths


def directed(
    voice: ResolvedVoice | None, strengths: Mapping[str, float], directions: Mapping[str, Direction]
) -> ResolvedVoice:
    """The voice with directions added to its speaker embedding.

    Raises:
        Unsupported: it has none.
        InvalidArgument: a direction is not there, or is of another checkpoint; says which there are.
    """
    embedding = None if voice is None else voice.artifacts.get(EMBEDDING)
    if voice is None or embedding is None:
        raise Unsupported(
            f"this model has no speaker embeddings, to which directions are added; leave {', '.join(strengths)} out of "
            "the `style`"
        )
    there = {
        name: each.vector
        for name, each in directions.items()
        if each.fingerprint == voice.fingerprint and each.vector.shape == embedding.shape
    }
    for name, strength in strengths.items():
        if name not in there:
            why = "is of another checkpoint" if name in directions else "is not there"
            known = ", ".join(there) or "none"
            raise InvalidArgument(f"`style`: the direction {quoted(name)} {why}; there are {known}")
        embedding = embedding + np.float32(strength) * there[name]
    return voice._replace(artifacts={**voice.artifacts, EMBEDDING: embedding})
