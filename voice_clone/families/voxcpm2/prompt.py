"""Text to token ids: the BPE of `tokenizer.json`, but each Chinese character is a token of its own. Needs no torch.

Source: voxcpm 2.0.3, `mask_multichar_chinese_tokens` and `VoxCPM.generate`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import CheckpointError, InvalidArgument
from voice_clone.families.voxcpm2.audio_vae_config import PROMPT_LATENTS, REFERENCE_LATENTS, WIDTH
from voice_clone.families.voxcpm2.config import CONFIG_FILE, VoxCPM2Config, load_config
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.options import (
    CONTINUATION,
    MODE,
    REF_CONTINUATION,
    REFERENCE,
    STYLE,
    asked_mode,
    check_together,
)
from voice_clone.request_fields import SOURCES
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt, frames_of
from voice_clone.stages.prompt_tensors import PromptTensors, tensor, tokens
from voice_clone.stages.protocols import Prepared, check_reference
from voice_clone.stages.text import Ids, PlainTokenizer, reader

if TYPE_CHECKING:  # the library is imported where it is needed
    import tokenizers

[TOKENIZER_FILE] = CARD.files

_SPACE = "\u2581"  # stands for a blank in a token
_CHINESE = re.compile("[\u4e00-\u9fff]{2,}")
_PARENTHESES = str.maketrans("", "", "()\uff08\uff09")


def target(text: str, style: str | None = None) -> str:
    """What is to be said, as the model reads it: white space is one blank, and a style stands before the text.

    Args:
        style: how to speak, in words; parentheses in it are dropped, because they are its marks.
    """
    if style is not None:
        text = f"({style.translate(_PARENTHESES).strip()}){text}"
    return re.sub(r"\s+", " ", text)


class Tokenizer(PlainTokenizer):
    """The tokenizer of a checkpoint folder.

    Raises:
        CheckpointError: the file is missing or malformed, or has more tokens than the talker.
    """

    def __init__(self, folder: Path, config: VoxCPM2Config) -> None:
        size, where = config.lm_config.vocab_size, f"lm_config.vocab_size in {CONFIG_FILE}"
        super().__init__(folder, TOKENIZER_FILE, size, where)
        self._split = self._characters(self.vocabulary.library)

    def text_ids(self, text: str) -> Ids:
        """Those of a text: int32 [n].

        Raises:
            InvalidArgument: `text` holds a control token of the model.
        """
        return self._ids("text", text)

    def reference_ids(self, transcript: str) -> Ids:
        """Those of a clip's transcript: int32 [n].

        Raises:
            InvalidArgument: `transcript` holds a control token of the model.
        """
        return self._ids("reference_text", transcript)

    def joined_ids(self, transcript: str, text: str) -> Ids:
        """Those of a text that goes on behind a transcript, as one string: a token may span both. int32 [n].

        Raises:
            InvalidArgument: the two hold a control token of the model.
        """
        return self._ids("text", transcript + text)

    def _ids(self, name: str, text: str) -> Ids:
        ids = self._ids_of(name, text)
        return np.array([part for index in ids for part in self._split.get(index, (index,))], np.int32)

    @staticmethod
    def _characters(tokenizer: tokenizers.Tokenizer) -> dict[int, tuple[int, ...]]:
        """Of each token of several Chinese characters, theirs; a blank at its side is lost, as in training."""
        vocabulary = tokenizer.get_vocab()
        unknown = vocabulary.get(getattr(tokenizer.model, "unk_token", None) or "")
        found = {}
        for token, index in vocabulary.items():
            characters = token.replace(_SPACE, "")
            if characters in vocabulary and _CHINESE.fullmatch(characters):
                ids = [vocabulary.get(each, unknown) for each in characters]
                if None in ids:
                    raise CheckpointError(f"{TOKENIZER_FILE}: lacks a character of the token {token!r}")
                found[index] = tuple(each for each in ids if each is not None)
        return found


read = reader(load_config, Tokenizer)


_LATENTS = tensor(np.float32, None, WIDTH)


@dataclass(frozen=True, eq=False)
class Prompt(PromptTensors):
    """One synthesis request for the talker.

    Attributes:
        text_ids: the tokens of the text; before them those of what `prompt_latents` say, if there are any.
        reference_latents: a clip in the voice; 0 frames: none.
        prompt_latents: a clip that the speech goes on from; 0 frames: it begins by itself.
    """

    text_ids: Ids = field(metadata=tokens(lambda config: config.lm_config.vocab_size))
    reference_latents: NDArray[np.float32] = field(metadata=_LATENTS)
    prompt_latents: NDArray[np.float32] = field(metadata=_LATENTS)

    @property
    def reference_length(self) -> int:
        """Positions of the reference and its marks."""
        return len(self.reference_latents) + 2 if len(self.reference_latents) else 0

    @property
    def length(self) -> int:
        """All positions."""
        return self.reference_length + len(self.text_ids) + 1 + len(self.prompt_latents)


TARGET_TOKENS = "target_tokens"
Latents = NDArray[Any]
ZERO_SHOT = "zero_shot"  # no mode that can be asked for: there is no voice


class VoxCPM2Prompt(CardPrompt[VoxCPM2Config, Tokenizer, Ids]):
    """The prompt stage of a checkpoint."""

    card, read = CARD, staticmethod(read)

    def draft(self, speech: SpeechRequest) -> Ids:
        self.check(speech)
        check_together(speech.options)
        style, mode = speech.options.get(STYLE), asked_mode(speech.options)
        if MODE in speech.options and not any(getattr(speech, each) is not None for each in SOURCES):
            raise InvalidArgument(
                f"`options.{MODE}` says what is heard of a voice; give a `voice` or `reference_audio`, or leave it out"
            )
        if mode == REFERENCE and speech.x_vector_only is False:
            name = MODE if style is None else STYLE
            raise InvalidArgument(
                f"with `options.{name}` the voice is not cloned in context; leave out either it or `x_vector_only`"
            )
        if mode in (CONTINUATION, REF_CONTINUATION) and speech.reference_audio is not None:
            _need_transcript(mode, speech.reference_text)
        return self.text_ids(target(speech.text, style))

    def prepare(self, speech: SpeechRequest, draft: Ids, voice: ResolvedVoice | None) -> Prepared:
        if voice is None:
            nothing = np.zeros((0, WIDTH), np.float32)
            return self._prepared(ZERO_SHOT, draft, draft, nothing, nothing)
        reference, prompt = (frames_of(voice, each.name, WIDTH) for each in CARD.artifacts)
        for latents in (reference, prompt):
            check_reference(len(latents), self.max_reference_frames)
        best = REFERENCE if voice.transcript is None or not len(prompt) else REF_CONTINUATION
        mode = asked_mode(speech.options) or best
        ids = draft
        if mode == REFERENCE:
            prompt = prompt[:0]
        else:
            transcript = _need_transcript(mode, voice.transcript if len(prompt) else None)
            self.reference_ids(transcript)  # refuses a long one
            ids = self.tokenizer.joined_ids(transcript, target(speech.text, speech.options.get(STYLE)))
        if mode == CONTINUATION:
            reference = reference[:0]
        return self._prepared(mode, draft, ids, reference, prompt)

    @staticmethod
    def _prepared(mode: str, target_ids: Ids, ids: Ids, reference: Latents, prompt: Latents) -> Prepared:
        tensors: dict[str, NDArray[Any]] = {
            "text_ids": ids,
            TARGET_TOKENS: np.array([len(target_ids)], np.int32),
            REFERENCE_LATENTS: reference,
            PROMPT_LATENTS: prompt,
        }
        info = {
            "mode": mode,
            "text_tokens": len(ids),
            "reference_frames": len(reference),
            "prompt_frames": len(prompt),
        }
        return Prepared(tensors, info)


def _need_transcript(mode: str, transcript: str | None) -> str:
    if transcript is None:
        raise InvalidArgument(
            f"`options.{MODE} {mode}` needs the clip's transcript, and this voice has none; give `reference_text` with "
            f"the clip, or use `options.{MODE} {REFERENCE}`"
        )
    return transcript


load_prompt = VoxCPM2Prompt.load
