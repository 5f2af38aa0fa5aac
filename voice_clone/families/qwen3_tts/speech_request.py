"""A request for speech as the caller makes it, and the rules it must obey. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig

MIN_FRAME_BUDGET = 192  # frames (15.4 s) that even the shortest text may take
FRAMES_PER_TOKEN = 12


@dataclass(frozen=True, eq=False)
class SpeechRequest:
    """Text, and exactly one source of the voice: `voice`, `reference_audio` or `speaker_embedding`.

    Attributes:
        text: what is said.
        voice: name of a registered voice.
        reference_audio: an encoded audio file, or its data URL.
        reference_text: transcript of `reference_audio`; asks for in-context cloning.
        speaker_embedding: float32 [hidden size of the talker].
        x_vector_only: True uses the speaker embedding alone, False insists on in-context cloning, None takes the
            best that the voice offers.
        language: a language of the checkpoint, or `Auto`.

    Raises:
        InvalidArgument: on construction, if something is missing or contradicts something else.
    """

    text: str
    voice: str | None = None
    reference_audio: bytes | None = None
    reference_text: str | None = None
    speaker_embedding: NDArray[np.float32] | None = None
    x_vector_only: bool | None = None
    language: str | None = None

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise InvalidArgument("text is blank; give at least one word to say")
        given = [n for n in ("voice", "reference_audio", "speaker_embedding") if getattr(self, n) is not None]
        if len(given) != 1:
            what = " and ".join(given) or "none of them"
            raise InvalidArgument(f"give exactly one of voice, reference_audio, speaker_embedding; got {what}")
        if self.reference_text is not None:
            self._check_reference_text()
        elif self.reference_audio is not None and self.x_vector_only is False:
            raise InvalidArgument(
                "in-context cloning (x_vector_only false) needs reference_text, the clip's transcript"
            )
        if self.speaker_embedding is not None:
            if self.x_vector_only is False:
                raise InvalidArgument("a speaker_embedding allows x-vector cloning only; leave x_vector_only out")
            if not np.isfinite(self.speaker_embedding).all():
                raise InvalidArgument("speaker_embedding holds NaN or infinity; every value must be finite")

    def _check_reference_text(self) -> None:
        if self.reference_audio is None:
            raise InvalidArgument(
                "reference_text belongs to reference_audio; a registered voice has its own transcript"
            )
        if self.x_vector_only:
            raise InvalidArgument("x_vector_only uses no transcript; leave out either it or reference_text")
        if not self.reference_text or not self.reference_text.strip():
            raise InvalidArgument("reference_text is blank; give the words spoken in reference_audio, or leave it out")

    @property
    def clip_mode(self) -> str:
        """The mode in which an inline clip is used."""
        return "x_vector" if self.reference_text is None else "icl"

    def language_id(self, config: Qwen3TTSConfig) -> int | None:
        """The codec token of the language; None for `Auto`.

        Raises:
            InvalidArgument: the checkpoint does not speak it.
        """
        name = (self.language or "auto").strip().lower()
        if name not in config.languages:
            known = ", ".join(language.title() for language in config.languages)
            raise InvalidArgument(f"language {self.language!r} is unknown; this checkpoint has {known}")
        return None if name == "auto" else config.talker.codec_language_id[name]


def frame_budget(text_tokens: int, max_frames: int | None, default_max: int) -> int:
    """Frames after which a stream ends with finish reason `length`: a text of n tokens rarely takes 12 n.

    Raises:
        InvalidArgument: `max_frames` is < 1.
    """
    if max_frames is not None and max_frames < 1:
        raise InvalidArgument(f"max_frames is {max_frames}; it must be at least 1")
    return min(max(MIN_FRAME_BUDGET, FRAMES_PER_TOKEN * text_tokens), max_frames or default_max)
