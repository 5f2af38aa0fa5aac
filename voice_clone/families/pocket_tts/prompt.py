"""The prompt stage prepares a text as the official code does, and cuts it by the Unigram model of `tokenizer.json`.

It needs no torch.

Source: pocket-tts 4.0.1, `models/text_chunking.py`. The official code also cuts a text at every mark and joins its
sentences by blanks, which changes abbreviations and addresses; here it is read as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import InvalidArgument, Unsupported, quoted
from voice_clone.families.pocket_tts.config import CONFIG_FILE, PocketConfig, load_config
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt, frames_of
from voice_clone.stages.prompt_tensors import PromptTensors, tensor, tokens
from voice_clone.stages.protocols import Prepared
from voice_clone.stages.text import Ids, PlainTokenizer, limited_ids, reader

[TOKENIZER_FILE] = CARD.files
[LATENTS] = (each.name for each in CARD.artifacts)
STEPS, END_THRESHOLD, FRAMES_AFTER_END = (each.name for each in CARD.options)
MOST_TOKENS = 200  # of a text; above 50 the models begin to skip words

_SPELLED = re.compile(r"<(?:unk|s|/s|0x[0-9A-F]{2})>")  # SentencePiece reads it as text, the Unigram model does not
_ENDS, _WEAK, _CLOSERS = ".!?\u2026", ",;:-\u2013\u2014", "\"'\u201d\u2019)]\u00bb"
_FEW_WORDS = 4


def prepared(text: str, config: PocketConfig) -> str:
    """Return a text as the model has learned to read it: on one line, and with a capital at its start."""
    text = text.strip()
    if config.replace_characters:
        others = {ord(each): other for each, other in config.replace_characters.items()}
        text = " ".join(text.translate(others).split())
        text = re.sub(r"([.!?\u2026])\s*[,;:]", r"\1", text)
    if not text:
        raise InvalidArgument("`text` holds nothing that this model can say")
    text = text.replace("\n", " ").replace("\r", " ").replace("  ", " ")
    if config.remove_semicolons:
        text = text.replace(";", ",")
    if config.capitalize_first_letter:
        text = text[0].upper() + text[1:]
    return text


def ended(text: str) -> str:
    """Return a prepared text with a mark at its end."""
    core = text.rstrip(_CLOSERS + " ")
    if not core or core[-1] in _ENDS:
        return text
    if core[-1] in _WEAK:
        return core.rstrip(_WEAK + " ") + "." + text[len(core) :].strip()
    return text + "."


class Tokenizer(PlainTokenizer):
    """The tokenizer of a checkpoint folder.

    Raises:
        CheckpointError: the file is missing or malformed, or has more tokens than the talker.
    """

    def __init__(self, folder: Path, config: PocketConfig) -> None:
        size, where = config.flow_lm.lookup_table.n_bins, f"flow_lm.lookup_table.n_bins in {CONFIG_FILE}"
        super().__init__(folder, TOKENIZER_FILE, size, where)
        self._config = config

    def text_ids(self, text: str) -> Ids:
        """Return the token ids of a text, with all that is put around it: int32 [n].

        Raises:
            InvalidArgument: `text` spells a control token of the model, or nothing of it is left.
        """
        if found := _SPELLED.search(text):
            raise InvalidArgument(f"the `text` holds {quoted(found[0])}, a control token; remove it")
        config, text = self._config, prepared(text, self._config)
        if config.append_terminal_punctuation:
            text = ended(text)
        if config.pad_with_spaces_for_short_inputs and len(text.split()) <= _FEW_WORDS:
            text = " " * 8 + text
        return np.array(self._ids_of("text", text), np.int32)

    def frames_after_end(self, text: str) -> int:
        """Return how many frames are heard from the frame on that says that speech ends."""
        if (recommended := self._config.model_recommended_frames_after_eos) >= 0:
            return recommended
        return 5 if len(prepared(text, self._config).split()) <= _FEW_WORDS else 3


read = reader(load_config, Tokenizer)


@dataclass(frozen=True, eq=False)
class Prompt(PromptTensors):
    """One synthesis request for the talker.

    Attributes:
        text_ids: the tokens of the text.
        frames_after_end: [1].
        latents: a clip in the voice, [frames, numbers].
    """

    text_ids: Ids = field(metadata=tokens(lambda config: config.flow_lm.lookup_table.n_bins))
    frames_after_end: NDArray[np.int32] = field(metadata=tensor(np.int32, 1, below=1 << 16))
    latents: NDArray[np.float32] = field(metadata=tensor(np.float32, None, None, least=1))

    def check(self, config: PocketConfig) -> None:
        super().check(config)
        if self.latents.shape[1] != config.mimi.voice_width:
            raise InvalidArgument(f"{LATENTS} must have {config.mimi.voice_width} numbers a frame")


def check_steps(config: PocketConfig, steps: int | None) -> None:
    """Check the option `steps`.

    Raises:
        Unsupported: the checkpoint's head makes a frame in one step.
    """
    if config.flow_lm.flow.type != "lsd" and steps not in (None, 1):
        raise Unsupported(f"this checkpoint makes a frame in one step; leave out `options.{STEPS}`")


class PocketPrompt(CardPrompt[PocketConfig, Tokenizer, Ids]):
    """The prompt stage of a checkpoint."""

    card, read = CARD, staticmethod(read)

    def check(self, speech: SpeechRequest) -> None:
        super().check(speech)
        check_steps(self.config, speech.options.get(STEPS))

    def text_ids(self, text: str) -> Ids:
        return limited_ids("text", text, self.tokenizer.text_ids, min(self.max_tokens, MOST_TOKENS))

    def prepare(self, speech: SpeechRequest, draft: Ids, voice: ResolvedVoice | None) -> Prepared:
        assert voice is not None  # there are no presets, and `check` has refused a speaker embedding
        latents = frames_of(voice, LATENTS, self.config.mimi.voice_width)
        after = speech.options.get(FRAMES_AFTER_END)
        after = self.tokenizer.frames_after_end(speech.text) if after is None else after
        tensors = {"text_ids": draft, FRAMES_AFTER_END: np.array([after], np.int32), LATENTS: latents}
        info = {"mode": voice.mode, "text_tokens": len(draft), "reference_frames": len(latents)}
        return Prepared(tensors, info)


load_prompt = PocketPrompt.load
