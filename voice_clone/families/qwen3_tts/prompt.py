"""Text to token ids, as the official processor makes them: Qwen2's byte-level BPE. Needs no torch.

Sources: transformers 4.57.3 `tokenization_qwen2_fast.py` and `Qwen2Converter`; the templates are those of qwen-tts
0.1.1 (`Qwen3TTSModel`, `_build_assistant_text`, `_build_ref_text`, `_build_instruct_text`).

The splitting pattern is Qwen2's, with which the models were trained. transformers 4.57.3 uses Mistral's pattern for any
large tokenizer in a local folder (transformers #42591), but Qwen2's if the checkpoint is loaded by its name on the hub.
Here it is always Qwen2's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from voice_clone.appended_text import AppendedTokens, Tail
from voice_clone.errors import CheckpointError, Internal, InvalidArgument, quoted
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, load_config
from voice_clone.families.qwen3_tts.family import BASE
from voice_clone.families.qwen3_tts.kinds import check_instruct, check_source
from voice_clone.speech import ResolvedVoice, SpeechRequest, find_language, list_languages
from voice_clone.stages.byte_pairs import QWEN2_SPLIT
from voice_clone.stages.prompt import CardPrompt
from voice_clone.stages.protocols import Arrays, Prepared, check_reference
from voice_clone.stages.text import (
    SETTINGS_FILE,
    Ids,
    check_no_control_token,
    check_range,
    limited_ids,
    qwen_vocabulary,
)

ROLE = "<|im_start|>assistant\n"
USER = "<|im_start|>user\n"
END = "<|im_end|>\n"


class Tokenizer:
    """The tokenizer of a checkpoint folder: tokenizer.json, or vocab.json and merges.txt.

    Attributes:
        vocabulary: the tokens of any text.
        role_ids: int32 [3], the ids of `<|im_start|>assistant\\n`.

    Raises:
        CheckpointError: a file is missing or malformed, or lacks the tokens of the chat template.
    """

    def __init__(self, folder: Path) -> None:
        self.vocabulary = qwen_vocabulary(folder)
        self._special = {index: token.content for index, token in self.vocabulary.added.items() if token.special}
        role, end = self.vocabulary.ids(ROLE), self.vocabulary.ids(END)
        if len(role) != ROLE_LENGTH or len(end) != 2 or role[0] not in self._special or end[0] not in self._special:
            raise CheckpointError(f"{SETTINGS_FILE}: {ROLE!r} and {END!r} are not the tokens that the model knows")
        self.role_ids: Ids = np.array(role, np.int32)
        self._end = end

    def text_ids(self, text: str) -> Ids:
        """The ids of `text` in the prompt of a synthesis: int32 [n].

        Raises:
            InvalidArgument: `text` holds a control token of the model.
        """
        return self._ids(text, END + ROLE, [*self._end, *self.role_ids.tolist()])

    def reference_ids(self, text: str) -> Ids:
        """The ids of the transcript of a reference clip: int32 [n].

        Raises:
            InvalidArgument: `text` holds a control token of the model.
        """
        return self._ids(text, END, self._end)

    def instruct_ids(self, text: str) -> Ids:
        """The ids of an instruction with its template, `<|im_start|>user\\n...<|im_end|>\\n`: int32 [n].

        Raises:
            InvalidArgument: `text` holds a control token of the model.
        """
        ids = self.vocabulary.ids(USER + text + END)
        check_no_control_token("options.instruct", ids[ROLE_LENGTH - 1 : -len(self._end)], self._special)
        return np.array(ids, np.int32)

    @cached_property
    def appended(self) -> AppendedTokens:
        """The tokens of a text that comes piece by piece; `begin_text` begins one.

        Raises:
            Unsupported: the tokenizer of this checkpoint is of another kind.
        """
        return AppendedTokens(self.vocabulary.library, self._special, QWEN2_SPLIT)

    @staticmethod
    def begin_text() -> Tail:
        """The tail of a text of which nothing is known yet: the line break of the role, whose token is hidden."""
        return Tail(text=ROLE[-1], begin=-1, hidden=1)

    def _ids(self, text: str, suffix: str, tail: list[int]) -> Ids:
        """Those of a text between the role and a suffix, whose tokens are `tail`."""
        # Line breaks at the start of the text may merge with the role's. So the whole template is tokenised and then
        # cut by position, as the official code does it.
        ids = self.vocabulary.ids(ROLE + text + suffix)
        inner = ids[ROLE_LENGTH : -len(tail)]
        check_no_control_token("text", inner, self._special)
        head = self.role_ids[: ROLE_LENGTH - 1].tolist()
        assert ids[: len(head)] == head and ids[-len(tail) :] == tail
        return np.array(inner, np.int32)


def read(folder: Path) -> tuple[Qwen3TTSConfig, Tokenizer]:
    """Configuration and tokenizer of the checkpoint in `folder`.

    Raises:
        CheckpointError: it cannot be served.
    """
    config = load_config(folder)
    return config, Tokenizer(folder)


Mode = Literal["icl", "x_vector", "preset", "design"]

EMBEDDING, CODES = (each.name for each in BASE.artifacts)

NO_SPEAKER = -1  # in place of a built-in speaker's codec token
ROLE_LENGTH = 3  # `<|im_start|>`, `assistant`, newline


def _no_ids() -> npt.NDArray[np.int32]:
    return np.zeros(0, np.int32)


def _no_codes() -> npt.NDArray[np.int32]:
    return np.zeros((0, 0), np.int32)


@dataclass(frozen=True, eq=False)
class Prompt:
    """One synthesis request for the talker; `mode` says where its voice comes from.

    Attributes:
        role_ids: int32 [3], the tokens of the chat template before the text: `<|im_start|>assistant\\n`.
        text_ids: int32 [n], n >= 1, the text itself without the template's tokens; of an open text what is known so
            far, which may be nothing.
        speaker_embedding: float32 [hidden size]; empty in the modes preset and design.
        reference_ids: int32 [m], the transcript of the reference clip; empty but in mode icl.
        reference_codes: int32 [frames, codebooks], the codec codes of the reference clip; empty but in mode icl.
        language_id: the codec token of the language; None lets the model find out (`Auto`).
        non_streaming_mode: the whole text stands before the first frame, instead of one token a frame.
        text_open: more text may follow.
        speaker_id: the codec token of a built-in speaker; None: the prompt has none.
        instruct_ids: int32 [k], an instruction with the tokens of its template around it; may be empty.

    Raises:
        InvalidArgument: on construction, if a shape, a type or the combination is wrong.
    """

    role_ids: npt.NDArray[np.int32]
    text_ids: npt.NDArray[np.int32]
    speaker_embedding: npt.NDArray[np.float32]
    reference_ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)
    reference_codes: npt.NDArray[np.int32] = field(default_factory=_no_codes)
    language_id: int | None = None
    non_streaming_mode: bool = False
    text_open: bool = False
    speaker_id: int | None = None
    instruct_ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)

    def __post_init__(self) -> None:
        for name in ("role_ids", "text_ids", "reference_ids", "reference_codes", "instruct_ids"):
            array, ndim = getattr(self, name), 2 if name == "reference_codes" else 1
            if array.dtype != np.int32 or array.ndim != ndim:
                raise InvalidArgument(f"{name} must be INT32 of {ndim} dimension(s)")
        if self.role_ids.shape[0] != ROLE_LENGTH:
            raise InvalidArgument(f"role_ids must hold {ROLE_LENGTH} ids")
        if self.text_ids.shape[0] == 0 and not self.text_open:
            raise InvalidArgument("the `text` is empty; it must hold at least one token")
        if self.text_open and self.non_streaming_mode:
            raise InvalidArgument("`non_streaming_mode` needs the whole text at once; leave out `text_stream` or it")
        if self.speaker_embedding.dtype != np.float32 or self.speaker_embedding.ndim != 1:
            raise InvalidArgument("`speaker_embedding` must be FP32 of 1 dimension")
        if not np.isfinite(self.speaker_embedding).all():
            raise InvalidArgument("`speaker_embedding` must be finite; it holds NaN or infinity")
        if (self.reference_ids.shape[0] == 0) != (self.reference_codes.shape[0] == 0):
            raise InvalidArgument("reference codes and the transcript of the reference need each other")
        if self.speaker_embedding.shape[0] and self.speaker_id is not None:
            raise InvalidArgument("a prompt has a speaker_embedding or a speaker_id, not both")
        if self.reference_ids.shape[0] and not self.speaker_embedding.shape[0]:
            raise InvalidArgument("the reference of a voice needs its speaker_embedding")

    @property
    def mode(self) -> Mode:
        return mode_of(self.reference_codes, self.speaker_embedding, self.speaker_id)

    def check(self, config: Qwen3TTSConfig) -> None:
        """Check all values against the checkpoint.

        Raises:
            InvalidArgument: an id or a code is out of the checkpoint's range, language or speaker is unknown, the voice
                comes from where this kind of checkpoint has none, or the embedding has another dimension.
        """
        talker = config.talker
        for name in ("role_ids", "text_ids", "reference_ids", "instruct_ids"):
            check_range(name, getattr(self, name), talker.text_vocab_size)
        dimension = self.speaker_embedding.shape[0]
        if dimension not in (talker.hidden_size, 0) or (dimension == 0) == (config.kind == "base"):
            needed = talker.hidden_size if config.kind == "base" else 0
            raise InvalidArgument(f"`speaker_embedding` has {dimension} values; this model needs {needed}")
        if (self.speaker_id is not None) != (config.kind == "custom_voice"):
            raise InvalidArgument("speaker_id is for CustomVoice checkpoints, which need one")
        if self.speaker_id is not None and self.speaker_id not in config.speakers.values():
            raise InvalidArgument("speaker_id is no speaker of this model")
        if self.mode == "icl":
            books = self.reference_codes.shape[1]
            if books != talker.num_code_groups:
                raise InvalidArgument(f"reference codes have {books} codebooks; expected {talker.num_code_groups}")
            check_range("reference_codes", self.reference_codes, config.codec.decoder_config.codebook_size)
        if self.language_id is not None and self.language_id not in talker.codec_language_id.values():
            raise InvalidArgument("language_id is no language of this model")


def mode_of(
    reference_codes: npt.NDArray[np.int32], speaker_embedding: npt.NDArray[np.float32], speaker_id: int | None
) -> Mode:
    """In context if there are codes of a reference; else by an embedding, a built-in speaker, or words alone."""
    if len(reference_codes):
        return "icl"
    if len(speaker_embedding):
        return "x_vector"
    return "design" if speaker_id is None else "preset"


class Qwen3TTSPrompt(CardPrompt[Qwen3TTSConfig, Tokenizer, Arrays]):
    card, read = BASE, staticmethod(read)

    def __init__(
        self, config: Qwen3TTSConfig, tokenizer: Tokenizer, max_tokens: int, max_reference_frames: int = 512
    ) -> None:
        super().__init__(config, tokenizer, max_tokens, max_reference_frames)
        self.presets, self.voiceless = tuple(config.speakers), config.kind == "voice_design"
        self.instructions = "" if config.kind == "base" else "instruct"

    def draft(self, speech: SpeechRequest) -> Arrays:
        """Language, options and text of a request; the talker makes the tokens of a text that is still written."""
        check_source(speech, self.config)
        self.check(speech)
        given = speech.options.get("instruct")
        check_instruct(given, self.config)
        language = language_id(speech.language, self.config, speech.voice)
        ids = self.tokenizer.instruct_ids
        tensors: Arrays = {
            "instruct_ids": limited_ids("options.instruct", given, ids, self.max_tokens) if given else _no_ids(),
            "language_id": np.array([-1 if language is None else language], np.int32),
        }
        if speech.text_stream is None:
            return {**tensors, "text_ids": self.text_ids(speech.text)}
        limited_ids("text", speech.text, self._known_ids, self.max_tokens)  # refuses what cannot be spoken
        return {**tensors, "text_ids": _no_ids(), "open_text": np.frombuffer(speech.text.encode(), np.uint8)}

    def prepare(self, speech: SpeechRequest, draft: Arrays, voice: ResolvedVoice | None) -> Prepared:
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
        reference_ids = _no_ids()
        transcript = None if voice is None or speech.x_vector_only else voice.transcript
        if voice is not None and transcript is not None:
            codes = voice.artifacts[CODES]
            check_reference(len(codes), self.max_reference_frames)
            if transcript:
                reference_ids = self.reference_ids(transcript)
        tensors = {
            **draft,
            "role_ids": self.tokenizer.role_ids,
            "reference_ids": reference_ids,
            "reference_codes": codes,
            "speaker_embedding": embedding,
            "speaker_id": np.array([NO_SPEAKER if speaker is None else speaker], np.int32),
        }
        info = {
            "mode": mode_of(codes, embedding, speaker),
            "text_tokens": len(draft["text_ids"]),
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
