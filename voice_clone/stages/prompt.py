"""The prompt stage that is alike for all families: text and voice to the talker's prompt. Needs no torch."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from numpy.typing import NDArray

from voice_clone.errors import Internal
from voice_clone.family import Family
from voice_clone.settings import PromptSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import Prepared
from voice_clone.stages.requests import check_speech
from voice_clone.stages.text import Ids, limited_ids

C = TypeVar("C")
T = TypeVar("T")
D = TypeVar("D")
S = TypeVar("S", bound="CardPrompt[Any, Any, Any]")


class CardPrompt(Generic[C, T, D]):
    """A `voice_clone.stages.protocols.PromptStage` of a checkpoint: C is its configuration, T its tokenizer, D a draft.

    A family sets `card` and writes `read` and `prepare`; it overrides what differs.

    Args:
        max_tokens: of a text, and of a transcript; longer ones are refused.
        max_reference_frames: that talker and code2wav take.
    """

    card: ClassVar[Family]
    presets: tuple[str, ...] = ()

    def __init__(self, config: C, tokenizer: T, max_tokens: int, max_reference_frames: int = 768) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.appends, self.voiceless = self.card.appends, self.card.voiceless
        self.instructions = self.card.instructions
        self.decoder = self.card.decoder_of or self.card.name
        self.max_tokens, self.max_reference_frames = max_tokens, max_reference_frames

    @staticmethod
    @abstractmethod
    def read(folder: Path, /) -> tuple[Any, Any]:
        """Configuration and tokenizer of the checkpoint in `folder`."""

    @classmethod
    def load(cls: type[S], given: Settings) -> S:
        settings = PromptSettings.of(given)
        return cls(*cls.read(settings.checkpoint_dir), settings.max_text_tokens, settings.max_chunk_frames)

    def draft(self, speech: SpeechRequest) -> D:
        """As of `PromptStage`: here the tokens of the text."""
        self.check(speech)
        return self.text_ids(speech.text)  # type: ignore[return-value]

    @abstractmethod
    def prepare(self, speech: SpeechRequest, draft: D, voice: ResolvedVoice | None) -> Prepared:
        """As of `PromptStage`: the tensors that the card names."""

    def check(self, speech: SpeechRequest) -> None:
        """Refuse what the card lacks, and a wrong transcript before its clip is encoded, if the talker reads any."""
        check_speech(self.card, speech)
        read = any("reference_text" in needs for needs in self.card.modes.values())
        if read and speech.reference_text and not speech.x_vector_only:
            self.reference_ids(speech.reference_text)

    def text_ids(self, text: str) -> Ids:
        return limited_ids("text", text, self.tokenizer.text_ids, self.max_tokens)  # type: ignore[attr-defined]

    def reference_ids(self, transcript: str) -> Ids:
        """The tokens of a clip's transcript."""
        tokenize = self.tokenizer.reference_ids  # type: ignore[attr-defined]
        return limited_ids("reference_text", transcript, tokenize, self.max_tokens)


def frames_of(voice: ResolvedVoice, artifact: str, width: int) -> NDArray[Any]:
    """An artifact of frames, [n, width].

    Raises:
        Internal: the voice has another one.
    """
    frames = voice.artifacts[artifact]
    if frames.ndim != 2 or frames.shape[1] != width:
        raise Internal("the artifacts of this voice belong to another checkpoint")
    return frames
