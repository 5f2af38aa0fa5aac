"""Text to token ids: the checkpoint's `tokenizer.json`, and how parts of a prompt are wrapped. Needs no torch.

Source: omnivoice 0.2.1, `models/omnivoice.py` (`_prepare_inference_inputs`, `_combine_text`,
`_tokenize_with_nonverbal_tags`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import CheckpointError, Internal, InvalidArgument, Unsupported
from voice_clone.families.omnivoice.chunks import Pace, plan_chunks, with_end
from voice_clone.families.omnivoice.config import (
    CODEBOOKS,
    CODEC_CODES,
    CODES,
    CONFIG_FILE,
    ICL,
    REF_RMS,
    TOKENIZER_FILE,
    TalkerConfig,
    load_config,
)
from voice_clone.families.omnivoice.family import CARD
from voice_clone.families.omnivoice.instruct import instruction
from voice_clone.families.omnivoice.languages import language_id
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt, frames_of
from voice_clone.stages.prompt_tensors import PromptTensors, tensor, tokens
from voice_clone.stages.protocols import Arrays, Prepared, check_reference
from voice_clone.stages.text import Ids, PlainTokenizer, check_no_control_token, limited_ids, reader

DENOISE = "<|denoise|>"
LANGUAGE = ("<|lang_start|>", "<|lang_end|>")
INSTRUCTION = ("<|instruct_start|>", "<|instruct_end|>")
TEXT = ("<|text_start|>", "<|text_end|>")
CONTROL = (DENOISE, *LANGUAGE, *INSTRUCTION, *TEXT)

_QUESTIONS, _SURPRISES = ("en", "ah", "oh", "ei", "yi"), ("ah", "oh", "wa", "yo")
SOUNDS = (
    *("laughter", "sigh", "confirmation-en", "dissatisfaction-hnn"),
    *(f"question-{each}" for each in _QUESTIONS),
    *(f"surprise-{each}" for each in _SURPRISES),
)
"""Sounds that a text may ask for, each in square brackets."""
_SOUND = re.compile(rf"(\[(?:{'|'.join(SOUNDS)})\])")
_BESIDE_CHINESE = re.compile(r"(?<=[\u4e00-\u9fff])\s+|\s+(?=[\u4e00-\u9fff])")
_WIDE_BRACKETS = str.maketrans("（）", "()")


def joined(transcript: str | None, text: str) -> str:
    """What the model reads: the transcript of the clip and the text behind it, in one line."""
    whole = f"{transcript.strip()} {text.strip()}" if transcript else text.strip()
    whole = re.sub(r"[\r\n]+", "", whole).translate(_WIDE_BRACKETS)
    return _BESIDE_CHINESE.sub("", re.sub(r"[ \t]+", " ", whole))


class Tokenizer(PlainTokenizer):
    """The tokenizer of a checkpoint folder.

    Raises:
        CheckpointError: the file is missing or malformed, lacks a control token, or has more tokens than the talker.
    """

    def __init__(self, folder: Path, config: TalkerConfig) -> None:
        where = f"vocab_size in {CONFIG_FILE}"
        super().__init__(folder, TOKENIZER_FILE, config.vocab_size, where, lambda token: token[:2] != "<|")
        for token in CONTROL:
            if len(self._encode(token)) != 1:
                raise CheckpointError(f"{TOKENIZER_FILE}: {token} is no token of it")

    def check(self, name: str, ids: Ids) -> None:
        """Check the tokens of a text of a request; `name` is for the error.

        Raises:
            InvalidArgument: it holds a control token of the model.
        """
        check_no_control_token(name, ids.tolist(), self._control)

    def ids(self, text: str) -> Ids:
        """Those of a text by itself: int32 [n]."""
        return np.array(self._encode(text), np.int32)

    def style_ids(self, denoise: bool, language: str | None, instruction: str | None) -> Ids:
        """What stands before the text: int32 [n].

        Args:
            denoise: speak as if the clip had no noise.
            language: its id; None: none is named.
            instruction: as of `instruct.instruction`.
        """
        words = (language or "None").join(LANGUAGE) + (instruction or "None").join(INSTRUCTION)
        return self.ids((DENOISE if denoise else "") + words)

    def text_ids(self, transcript: str | None, text: str) -> Ids:
        """Those of the text, with the transcript of the clip before it: int32 [n]. A sound is encoded by itself."""
        parts = _SOUND.split(joined(transcript, text).join(TEXT))
        return np.array([each for part in parts if part for each in self._encode(part)], np.int32)


read = reader(load_config, Tokenizer)


@dataclass(frozen=True, eq=False)
class Prompt(PromptTensors):
    """One speech, for the talker.

    Attributes:
        ids: the tokens before the frames, chunk after chunk.
        id_counts: how many of them are of each chunk.
        frames: those of each chunk.
        codec_codes: [T, 8], the clip; T is 0 if there is none.
    """

    ids: Ids = field(metadata=tokens(lambda config: config.vocab_size))
    id_counts: NDArray[np.int32] = field(metadata=tokens())
    frames: NDArray[np.int32] = field(metadata=tokens())
    codec_codes: NDArray[np.uint16] = field(metadata=tensor(np.uint16, None, CODEBOOKS, below=CODES))

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.id_counts) != len(self.frames) or self.id_counts.min() < 1 or self.frames.min() < 1:
            raise InvalidArgument("id_counts and frames must have the same length, and each number must be above 0")
        if int(self.id_counts.sum(dtype=np.int64)) != len(self.ids):
            raise InvalidArgument(f"the sum of id_counts must be the length of ids, which is {len(self.ids)}")

    @property
    def chunks(self) -> list[NDArray[np.int32]]:
        return np.split(self.ids, np.cumsum(self.id_counts)[:-1])

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Positions before the frames, and frames, of each chunk."""
        heard = [len(self.codec_codes) or int(self.frames[0]) * (index > 0) for index in range(len(self.frames))]
        return [
            (int(ids) + before, int(frames))
            for ids, before, frames in zip(self.id_counts, heard, self.frames, strict=True)
        ]


SHORT = 25  # frames of a text; without a voice such a short one is noise often
WARNING = {
    "code": "short_text",
    "message": "a text of about a second without a voice may be noise; give a longer one, or a voice",
}


@dataclass(frozen=True)
class PromptDraft:
    """What is known before the voice is: how many tokens the text has, its language, words for the voice, its pace."""

    tokens: int
    language: str | None
    instruction: str | None
    pace: Pace


class OmniVoicePrompt(CardPrompt[TalkerConfig, Tokenizer, PromptDraft]):
    """The prompt stage of a checkpoint."""

    card, read = CARD, staticmethod(read)

    def draft(self, speech: SpeechRequest) -> PromptDraft:
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
        return PromptDraft(
            tokens, language_id(speech.language), instruction(options.get("instruct"), speech.text), pace
        )

    def prepare(self, speech: SpeechRequest, draft: PromptDraft, voice: ResolvedVoice | None) -> Prepared:
        codes, rms, transcript = np.zeros((0, CODEBOOKS), np.uint16), np.zeros(1, np.float32), None
        if voice is not None:
            codes, rms = frames_of(voice, CODEC_CODES, CODEBOOKS), voice.artifacts[REF_RMS]
            if rms.shape != (1,) or not len(codes):
                raise Internal("the artifacts of this voice belong to another checkpoint")
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

    def _chunk_ids(self, texts: list[str], transcript: str | None, draft: PromptDraft, denoise: bool) -> list[Ids]:
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
