"""The voices on disk, as far as what is computed of them can be made ready while a server starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.prompt_stage import CODES, EMBEDDING
from voice_clone.families.qwen3_tts.text import Tokenizer
from voice_clone.speakers.disk.latest import latest_artifacts
from voice_clone.speakers.record import IN_CONTEXT, ArtifactId

ARTIFACT = ArtifactId("qwen3_tts", IN_CONTEXT)


def known_references(directory: Path) -> Iterator[NDArray[np.int32]]:
    """The reference codes of each voice with a transcript, the latest first."""
    for _, artifacts in latest_artifacts(directory, ARTIFACT):
        if CODES in artifacts:  # else another version made them: they are made anew when they are asked for
            yield artifacts[CODES]


def known_prompts(directory: Path, tokenizer: Tokenizer) -> Iterator[Prompt]:
    """A prompt with some text of each of these voices, the latest first; their language is left open."""
    for record, artifacts in latest_artifacts(directory, ARTIFACT):
        if not {CODES, EMBEDDING} <= artifacts.keys():
            continue
        with contextlib.suppress(Exception):  # they belong to another checkpoint, or are none at all
            reference_ids = tokenizer.reference_ids(record.reference_text or "")
            role_ids = tokenizer.role_ids
            yield Prompt(role_ids, role_ids[-1:], artifacts[EMBEDDING], reference_ids, artifacts[CODES])
