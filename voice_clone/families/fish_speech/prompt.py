"""Text to token ids, part by part as the official code encodes a conversation. Needs no torch.

Source: fish-speech, commit 3dd1f85, `conversation.py`, `content_sequence.py` and `inference.py`. Each part is encoded
by itself, so no token spans two parts. A reference's frames stand between `reference_ids` and `text_ids`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import CheckpointError
from voice_clone.families.fish_speech.config import FishSpeechConfig, load_config
from voice_clone.families.fish_speech.family import CARD
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt, frames_of
from voice_clone.stages.prompt_tensors import PromptTensors, tensor, tokens
from voice_clone.stages.protocols import Prepared
from voice_clone.stages.text import Ids, PlainTokenizer, reader

TOKENIZER_FILE = "tokenizer.json"

END = "<|im_end|>"
BEFORE_TRANSCRIPT = (
    "<|im_start|>system\n",
    "convert the provided text to speech reference to the following:\n\nText:\n",
)
BEHIND_TRANSCRIPT = ("\n\nSpeech:\n",)
BEFORE_TEXT = (f"{END}\n", "<|im_start|>user\n")
BEHIND_TEXT = (f"{END}\n", "<|im_start|>assistant\n<|voice|>")

_SPEAKER = re.compile(r"<\|speaker:[0-9]+\|>")
_TURN = re.compile(rf"(?={_SPEAKER.pattern})")
_ALLOWED = re.compile(rf"{_SPEAKER.pattern}|<\|phoneme_(start|end)\|>")  # added tokens that a text may hold


class Tokenizer(PlainTokenizer):
    """The tokenizer of a checkpoint folder.

    Attributes:
        end_token: the token that ends speech.
        around_text: how many of `text_ids` are not the text's own.

    Raises:
        CheckpointError: the file is missing or malformed, or its tokens are not those that the configuration names.
    """

    def __init__(self, folder: Path, config: FishSpeechConfig) -> None:
        room, where = config.text_config.vocab_size, "text_config.vocab_size"
        super().__init__(folder, TOKENIZER_FILE, room, where, _ALLOWED.fullmatch)
        ids = {token.content: index for index, token in self.vocabulary.added.items()}
        named = {f"<|semantic:{code}|>": config.semantic_start_token_id + code for code in range(config.semantic_codes)}
        if config.eos_token_id >= 0:
            named[END] = config.eos_token_id
        for token, index in named.items():
            if ids.get(token) != index:
                raise CheckpointError(f"{TOKENIZER_FILE}: {token} does not have the id {index} of config.json")
        for token in (END, "<|im_start|>", "<|voice|>"):
            if ids.get(token) not in self._control:
                raise CheckpointError(f"{TOKENIZER_FILE}: lacks the token {token}")
        self.end_token = ids[END]
        self.around_text = len(self.text_ids(""))

    def reference_ids(self, transcript: str) -> Ids:
        """Return the tokens before the frames of a reference clip: int32 [n].

        Raises:
            InvalidArgument: `transcript` holds a control token of the model.
        """
        tagged = transcript if _SPEAKER.search(transcript) else f"<|speaker:0|>{transcript}"
        return self._ids("reference_text", BEFORE_TRANSCRIPT, tagged, BEHIND_TRANSCRIPT)

    def text_ids(self, text: str) -> Ids:
        """Return the tokens after the frames: int32 [n]. In a text with speakers each turn has a line of its own.

        Raises:
            InvalidArgument: `text` holds a control token of the model.
        """
        if _SPEAKER.search(text):
            text = "\n".join(turn for part in _TURN.split(text) if (turn := part.strip()))
        return self._ids("text", BEFORE_TEXT, text, BEHIND_TEXT)

    def _ids(self, name: str, before: tuple[str, ...], text: str, behind: tuple[str, ...]) -> Ids:
        inner = self._ids_of(name, text)
        parts = [*map(self._encode, before), inner, *map(self._encode, behind)]
        return np.array([index for part in parts for index in part], np.int32)


read = reader(load_config, Tokenizer)


[CODES] = (each.name for each in CARD.artifacts)


_IDS = tokens(lambda config: config.text_config.vocab_size)


@dataclass(frozen=True, eq=False)
class Prompt(PromptTensors):
    """One synthesis request for the talker.

    Attributes:
        reference_ids: the tokens before the frames: instruction and transcript.
        reference_codes: [frames, codebooks], of the reference clip.
        text_ids: the tokens after the frames: the text, and the beginning of the answer.
    """

    reference_ids: Ids = field(metadata=_IDS)
    reference_codes: NDArray[np.uint16] = field(
        metadata=tensor(np.uint16, None, None, least=1, below=lambda config: config.code_limits)
    )
    text_ids: Ids = field(metadata=_IDS)


class FishSpeechPrompt(CardPrompt[FishSpeechConfig, Tokenizer, Ids]):
    """The prompt stage of a checkpoint."""

    card, read = CARD, staticmethod(read)

    def prepare(self, speech: SpeechRequest, draft: Ids, voice: ResolvedVoice | None) -> Prepared:
        assert voice is not None  # `draft` has refused a speaker embedding
        assert voice.transcript is not None  # the only mode needs it
        codes = frames_of(voice, CODES, self.config.codebooks)
        reference_ids = self.reference_ids(voice.transcript)
        info = {
            "mode": voice.mode,
            "text_tokens": len(draft),
            "reference_tokens": len(reference_ids),
            "reference_frames": len(codes),
        }
        return Prepared({"reference_ids": reference_ids, "reference_codes": codes, "text_ids": draft}, info)


load_prompt = FishSpeechPrompt.load
