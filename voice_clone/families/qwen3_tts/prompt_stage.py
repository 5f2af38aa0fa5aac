"""Text and voice to the talker's prompt: a `voice_clone.stages.protocols.PromptStage`. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import Internal, InvalidArgument, quoted
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.family import BASE
from voice_clone.families.qwen3_tts.kinds import check_instruct, check_source
from voice_clone.families.qwen3_tts.prompt import CODES, EMBEDDING, NO_SPEAKER, mode_of
from voice_clone.families.qwen3_tts.text import Tokenizer, read
from voice_clone.speech import ResolvedVoice, SpeechRequest, find_language, list_languages
from voice_clone.stages.prompt import CardPrompt
from voice_clone.stages.protocols import Prepared, check_reference
from voice_clone.stages.text import limited_ids


@dataclass(frozen=True, eq=False)
class Draft:
    """What is known before the voice is.

    Attributes:
        text_ids: int32 [n].
        instruct_ids: int32 [k] of an instruction; none: there is none.
        language_id: the codec token of the language; None for `Auto`.
        open_text: uint8 [bytes] of a text that is still written: the talker makes its tokens.
    """

    text_ids: NDArray[np.int32]
    instruct_ids: NDArray[np.int32]
    language_id: int | None
    open_text: NDArray[np.uint8] | None = None


class Qwen3TTSPrompt(CardPrompt[Qwen3TTSConfig, Tokenizer, Draft]):
    """The prompt stage of a checkpoint of any kind."""

    card, read = BASE, staticmethod(read)

    def __init__(
        self, config: Qwen3TTSConfig, tokenizer: Tokenizer, max_tokens: int, max_reference_frames: int = 512
    ) -> None:
        super().__init__(config, tokenizer, max_tokens, max_reference_frames)
        self.presets, self.voiceless = tuple(config.speakers), config.kind == "voice_design"

    def draft(self, speech: SpeechRequest) -> Draft:
        """Language, options and text of a request."""
        check_source(speech, self.config)
        self.check(speech)
        given = speech.options.get("instruct")
        check_instruct(given, self.config)
        language = language_id(speech.language, self.config, speech.voice)
        ids = self.tokenizer.instruct_ids
        instruct = limited_ids("options.instruct", given, ids, self.max_tokens) if given else np.zeros(0, np.int32)
        if speech.text_stream is None:
            return Draft(self.text_ids(speech.text), instruct, language)
        limited_ids("text", speech.text, self._known_ids, self.max_tokens)  # refuses what cannot be spoken
        return Draft(np.zeros(0, np.int32), instruct, language, np.frombuffer(speech.text.encode(), np.uint8))

    def prepare(self, speech: SpeechRequest, draft: Draft, voice: ResolvedVoice | None) -> Prepared:
        size = self.config.talker.hidden_size if self.config.kind == "base" else 0
        embedding = speech.speaker_embedding if voice is None else voice.artifacts[EMBEDDING]
        speaker = None
        if embedding is None:  # a built-in speaker or, without any name, words
            embedding = np.zeros(0, np.float32)
            speaker = None if speech.voice is None else self.config.speakers[speech.voice]
        if embedding.shape != (size,):
            if voice is not None:
                raise Internal("the artifacts of this voice belong to another checkpoint")
            raise InvalidArgument(f"`speaker_embedding` has {embedding.size} values; this checkpoint needs {size}")
        codes = np.zeros((0, self.config.talker.num_code_groups), np.int32)
        reference_ids = draft.text_ids[:0]
        transcript = None if voice is None or speech.x_vector_only else voice.transcript
        if voice is not None and transcript is not None:
            codes = voice.artifacts[CODES]
            check_reference(len(codes), self.max_reference_frames)
            if transcript:
                reference_ids = self.reference_ids(transcript)
        tensors = {
            "role_ids": self.tokenizer.role_ids,
            "text_ids": draft.text_ids,
            "reference_ids": reference_ids,
            "reference_codes": codes,
            "speaker_embedding": embedding,
            "language_id": np.array([-1 if draft.language_id is None else draft.language_id], np.int32),
            "speaker_id": np.array([NO_SPEAKER if speaker is None else speaker], np.int32),
            "instruct_ids": draft.instruct_ids,
        }
        if draft.open_text is not None:
            tensors["open_text"] = draft.open_text
        info = {
            "mode": mode_of(codes, embedding, speaker),
            "text_tokens": len(draft.text_ids),
            "reference_tokens": len(reference_ids),
            "reference_frames": len(codes),
        }
        return Prepared(tensors, info)

    def _known_ids(self, text: str) -> NDArray[np.int32]:
        return self.tokenizer.appended.append(self.tokenizer.begin_text(), text).ids


def language_id(language: str | None, config: Qwen3TTSConfig, speaker: str | None = None) -> int | None:
    """The codec token of a language; None for `Auto`. A built-in speaker of a dialect has it for Chinese and `Auto`.

    Raises:
        InvalidArgument: the checkpoint does not speak it.
    """
    name = find_language(language, config.languages)
    if name is None:
        known = list_languages(config.languages)
        raise InvalidArgument(f"`language` {quoted(language)} is unknown; this checkpoint has {known}")
    if name in ("auto", "chinese") and speaker is not None and speaker.lower() in config.dialects:
        return config.talker.codec_language_id[config.dialects[speaker.lower()]]
    return None if name == "auto" else config.talker.codec_language_id[name]


load_prompt = Qwen3TTSPrompt.load
