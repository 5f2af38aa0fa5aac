"""The registered voices, as far as what is computed of them can be made ready while a server starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from voice_clone.codec.chunk import Reference
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.prompt_stage import CODES, EMBEDDING
from voice_clone.families.qwen3_tts.text import Tokenizer
from voice_clone.lru_cache import Origin
from voice_clone.speakers.record import IN_CONTEXT, ArtifactId
from voice_clone.speakers.store import KnownVoices

ARTIFACT = ArtifactId("qwen3_tts", IN_CONTEXT)


def known_references(voices: KnownVoices) -> Iterator[Reference]:
    """The reference codes of each voice with a transcript, the latest first."""
    for record, artifacts in voices.latest(ARTIFACT):
        if CODES in artifacts:  # else another version made them: they are made anew when they are asked for
            yield Reference(artifacts[CODES], origin=record.origin)


def known_prompts(voices: KnownVoices, tokenizer: Tokenizer) -> Iterator[tuple[Origin, Prompt]]:
    """A prompt with some text of each of these voices, the latest first; their language is left open."""
    for record, artifacts in voices.latest(ARTIFACT):
        if not {CODES, EMBEDDING} <= artifacts.keys():
            continue
        with contextlib.suppress(Exception):  # they belong to another checkpoint, or are none at all
            reference_ids = tokenizer.reference_ids(record.reference_text or "")
            role_ids = tokenizer.role_ids
            prompt = Prompt(role_ids, role_ids[-1:], artifacts[EMBEDDING], reference_ids, artifacts[CODES])
            yield record.origin, prompt
