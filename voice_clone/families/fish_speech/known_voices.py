"""The registered voices, as far as what is computed of them can be made ready while a server starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from voice_clone.errors import InvalidArgument
from voice_clone.families.fish_speech.prompt import CODES, Prompt
from voice_clone.families.fish_speech.text import Tokenizer
from voice_clone.lru_cache import Origin
from voice_clone.speakers.record import IN_CONTEXT, ArtifactId
from voice_clone.speakers.store import KnownVoices

ARTIFACT = ArtifactId("fish_speech", IN_CONTEXT)


def known_prompts(voices: KnownVoices, tokenizer: Tokenizer) -> Iterator[tuple[Origin, Prompt]]:
    """A prompt with some text of each voice with a transcript, the latest first."""
    text_ids = tokenizer.text_ids("a")
    for record, artifacts in voices.latest(ARTIFACT):
        if CODES not in artifacts:  # another version made them: they are made anew when they are asked for
            continue
        with contextlib.suppress(InvalidArgument):  # they belong to another checkpoint
            reference_ids = tokenizer.reference_ids(record.reference_text or "")
            yield record.origin, Prompt(reference_ids, artifacts[CODES], text_ids)
