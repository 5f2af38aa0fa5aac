"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch.

The mode says where the voice comes from. `icl`: from a clip and its transcript. `instruct`: from words that describe
it. `auto`: from chance, so the request's seed decides. An instruction may also go with a clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from voice_clone.errors import Unsupported
from voice_clone.families.omnivoice.chunks import Pace, plan_chunks, with_end
from voice_clone.families.omnivoice.config import CODEBOOKS, CODEC_CODES, ICL, REF_RMS, TalkerConfig
from voice_clone.families.omnivoice.family import CARD
from voice_clone.families.omnivoice.instruct import instruction
from voice_clone.families.omnivoice.languages import language_id
from voice_clone.families.omnivoice.text import Tokenizer, read
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt, frames_of
from voice_clone.stages.protocols import Arrays, Prepared, check_reference
from voice_clone.stages.text import Ids, limited_ids

SHORT = 25  # frames of a text; without a voice such a short one is noise often
WARNING = {
    "code": "short_text",
    "message": "a text of about a second without a voice may be noise; give a longer one, or a voice",
}


@dataclass(frozen=True)
class Draft:
    """What is known before the voice is: how many tokens the text has, its language, words for the voice, its pace."""

    tokens: int
    language: str | None
    instruction: str | None
    pace: Pace


class OmniVoicePrompt(CardPrompt[TalkerConfig, Tokenizer, Draft]):
    """The prompt stage of a checkpoint."""

    card, read = CARD, staticmethod(read)

    def draft(self, speech: SpeechRequest) -> Draft:
        """Check text, language and options."""
        self.check(speech)
        options = speech.options
        default = Pace()
        pace = Pace(
            speed=float(options.get("speed", default.speed)),
            duration=options.get("duration"),
            chunk_seconds=float(options.get("audio_chunk_duration", default.chunk_seconds)),
            threshold_seconds=float(options.get("audio_chunk_threshold", default.threshold_seconds)),
        )
        tokens = len(self.text_ids(speech.text))
        return Draft(tokens, language_id(speech.language), instruction(options.get("instruct"), speech.text), pace)

    def prepare(self, speech: SpeechRequest, draft: Draft, voice: ResolvedVoice | None) -> Prepared:
        codes, rms, transcript = np.zeros((0, CODEBOOKS), np.uint16), np.zeros(1, np.float32), None
        if voice is not None:
            codes, rms = frames_of(voice, CODEC_CODES, CODEBOOKS), voice.artifacts[REF_RMS]
            if voice.transcript is None:
                raise Unsupported("this voice has no transcript; register it again with `reference_text`")
            check_reference(len(codes), self.max_reference_frames)
            self.reference_ids(voice.transcript)  # refuses a long one
            transcript = with_end(voice.transcript)
        reference = None if transcript is None else (transcript, len(codes))
        chunks = plan_chunks(speech.text, reference, draft.pace)
        ids = self._chunk_ids(
            [text for text, _ in chunks], transcript, draft, bool(speech.options.get("denoise", True))
        )
        frames = [frames for _, frames in chunks]
        tensors: Arrays = {
            "ids": np.concatenate(ids),
            "id_counts": np.array([len(each) for each in ids], np.int32),
            "frames": np.array(frames, np.int32),
            CODEC_CODES: codes,
            REF_RMS: rms,
        }
        info: dict[str, Any] = {
            "mode": ICL if voice is not None else "instruct" if draft.instruction else "auto",
            "text_tokens": draft.tokens,
            "text_chunks": len(chunks),
            "planned_frames": sum(frames),
            "reference_frames": len(codes),
        }
        if voice is None and frames[0] <= SHORT:
            info["warnings"] = [WARNING]
        return Prepared(tensors, info)

    def _chunk_ids(self, texts: list[str], transcript: str | None, draft: Draft, denoise: bool) -> list[Ids]:
        """The ids of each chunk. Without a clip the first chunk is the clip of the others."""
        found = []
        for index, text in enumerate(texts):
            before = transcript if transcript is not None or index == 0 else texts[0]
            style = self.tokenizer.style_ids(denoise and before is not None, draft.language, draft.instruction)
            found.append(np.concatenate([style, self.tokenizer.text_ids(before, text)]))
        return found

    def text_ids(self, text: str) -> Ids:
        return self._spoken("text", text)

    def reference_ids(self, transcript: str) -> Ids:
        return self._spoken("reference_text", transcript)

    def _spoken(self, name: str, text: str) -> Ids:
        """The tokens of a text; it is refused if they are too many, or command the model."""
        ids = limited_ids(name, text, self.tokenizer.ids, self.max_tokens)
        self.tokenizer.check(name, ids)
        return ids


load_prompt = OmniVoicePrompt.load
