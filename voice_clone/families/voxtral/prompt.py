"""Text to token ids by `tekken.json`, a byte-level BPE that merges by the ranks of tokens. Needs no torch.

The first ids are special tokens; a text token's id is its rank behind them. The prompt is that of mistral-common
1.13.1, `encode_speech_request`: [BOS][BEGIN_AUDIO], the voice, [NEXT_AUDIO_TEXT], the text, [REPEAT_AUDIO_TEXT]
[BEGIN_AUDIO].
Special tokens that are spelled out in a text are plain text.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.checkpoint_folder import keep_no_words, read_json
from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported
from voice_clone.families.voxtral.config import NO_ENCODER, VoxtralConfig, has_encoder, load_config
from voice_clone.families.voxtral.family import CARD
from voice_clone.settings import PromptSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.prompt import CardPrompt, frames_of
from voice_clone.stages.prompt_tensors import PromptTensors, tensor, tokens
from voice_clone.stages.protocols import Prepared
from voice_clone.stages.text import Ids, reader

if TYPE_CHECKING:  # the library is imported where it is needed
    import tokenizers

[TOKENIZER_FILE] = CARD.files
BOS, BEGIN_AUDIO, AUDIO = "<s>", "[BEGIN_AUDIO]", "[AUDIO]"
BEFORE_TEXT, BEHIND_TEXT = "[NEXT_AUDIO_TEXT]", "[REPEAT_AUDIO_TEXT]"

# The letters that stand for bytes in byte-level BPE (GPT-2, Radford et al. 2019): printable bytes of Latin-1 stand for
# themselves, the others for letters from U+0100 on.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_LETTERS = {byte: chr(0x100 + place) for place, byte in enumerate(_OTHERS)}


class Tokenizer:
    """The tokenizer of a checkpoint folder.

    Attributes:
        before_voice: int32 [2], what stands before the voice.
        audio: the id of a place of the voice.
        around_text: how many of `text_ids` are not the text's own.

    Raises:
        CheckpointError: the file is missing or malformed, lacks a token, or does not fit the configuration.
    """

    def __init__(self, folder: Path, config: VoxtralConfig) -> None:
        values = read_json(folder, TOKENIZER_FILE)
        try:
            settings = values["config"]
            size, self._special = int(settings["default_vocab_size"]), int(settings["default_num_special_tokens"])
            special = {token["token_str"]: int(token["rank"]) for token in values["special_tokens"]}
            self._tokenizer = _tokenizer(values["vocab"], size - self._special, settings["pattern"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise CheckpointError(f"{TOKENIZER_FILE}: not a tokenizer that can be read") from None
        for name in (BOS, AUDIO, BEGIN_AUDIO, BEFORE_TEXT, BEHIND_TEXT):
            if not 0 <= special.get(name, -1) < self._special:
                raise CheckpointError(f"{TOKENIZER_FILE}: lacks the token {name}")
        if size > config.vocab_size:
            raise CheckpointError(f"{TOKENIZER_FILE}: has {size} tokens, but vocab_size is {config.vocab_size}")
        self.before_voice = np.array([special[BOS], special[BEGIN_AUDIO]], np.int32)
        self.audio = special[AUDIO]
        self._before, self._behind = special[BEFORE_TEXT], (special[BEHIND_TEXT], special[BEGIN_AUDIO])
        self.around_text = len(self.text_ids(""))

    def text_ids(self, text: str) -> Ids:
        """What stands behind the voice: int32 [n]."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return np.array([self._before, *(index + self._special for index in ids), *self._behind], np.int32)


def _tokenizer(entries: list[dict[str, Any]], count: int, pattern: str) -> tokenizers.Tokenizer:
    """Of the first `count` entries of the vocabulary.

    Raises:
        KeyError, TypeError, ValueError: they are no vocabulary.
    """
    import tokenizers
    from tokenizers import Regex, models, pre_tokenizers

    try:
        vocabulary = {_spelled(entry["token_bytes"]): int(entry["rank"]) for entry in entries[:count]}
    except binascii.Error as error:
        raise ValueError("not base64") from error
    if count < 256 or list(vocabulary.values()) != list(range(count)):
        raise ValueError("the tokens are not in the order of their ranks")
    # Of all pairs that make a token the one with the lowest rank is merged first: the order of this list.
    merges = [
        (token[:place], token[place:])
        for token in vocabulary
        for place in range(1, len(token))
        if token[:place] in vocabulary and token[place:] in vocabulary
    ]
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    try:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    except Exception as error:  # the library raises plain Exception
        raise ValueError("not a pattern") from error
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, by_bytes])
    keep_no_words(made)
    return made


def _spelled(token: str) -> str:
    """The bytes of a token, in base64, as letters."""
    return base64.b64decode(token, validate=True).decode("latin-1").translate(_LETTERS)


read = reader(load_config, Tokenizer)


[CODES] = (each.name for each in CARD.artifacts)
NO_PRESET = -1


def _vocabulary(config: VoxtralConfig) -> int:
    return config.vocab_size


@dataclass(frozen=True, eq=False)
class Prompt(PromptTensors):
    """One synthesis request for the talker.

    Attributes:
        before_voice: the tokens before the voice.
        text_ids: the tokens behind it: the text and its marks.
        preset: one of the checkpoint's own voices by its place in `VoxtralConfig.presets`, or `NO_PRESET`.
        codec_codes: [frames, codebooks], a clip as ids, the frame that ends it among them; 0 frames with a preset.
    """

    before_voice: Ids = field(metadata=tokens(_vocabulary))
    text_ids: Ids = field(metadata=tokens(_vocabulary))
    preset: NDArray[np.int32] = field(metadata=tensor(np.int32, 1))
    codec_codes: NDArray[np.uint16] = field(
        metadata=tensor(np.uint16, None, None, below=lambda config: config.id_limits)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (int(self.preset[0]) == NO_PRESET) != bool(len(self.codec_codes)):
            raise InvalidArgument(f"a prompt has either a preset or {CODES}")

    def check(self, config: VoxtralConfig) -> None:
        super().check(config)
        if not NO_PRESET <= int(self.preset[0]) < len(config.presets):
            raise InvalidArgument(f"preset must lie in {NO_PRESET}..{len(config.presets) - 1}")


class VoxtralPrompt(CardPrompt[VoxtralConfig, Tokenizer, Ids]):
    """The prompt stage of a checkpoint.

    Attributes:
        clones: whether the checkpoint has encoder weights.
    """

    card, read = CARD, staticmethod(read)
    clones = True

    @classmethod
    def load(cls, given: Settings) -> VoxtralPrompt:
        stage = super().load(given)
        stage.presets = stage.config.presets
        stage.clones = has_encoder(PromptSettings.of(given).checkpoint_dir)
        return stage

    def check(self, speech: SpeechRequest) -> None:
        if not self.clones and (speech.speaker_embedding is not None or speech.x_vector_only):
            raise Unsupported(NO_ENCODER)  # to give a clip instead would not help
        super().check(speech)

    def prepare(self, speech: SpeechRequest, draft: Ids, voice: ResolvedVoice | None) -> Prepared:
        width = self.config.codebooks
        preset, codes = NO_PRESET, np.zeros((0, width), np.uint16)
        if voice is None:
            assert speech.voice is not None  # `draft` has refused a speaker embedding
            preset = self.presets.index(speech.voice)
        else:
            codes = frames_of(voice, CODES, width)
        tensors: dict[str, NDArray[Any]] = {
            "before_voice": self.tokenizer.before_voice,
            "text_ids": draft,
            "preset": np.array([preset], np.int32),
            CODES: codes,
        }
        mode = "preset" if voice is None else voice.mode
        return Prepared(tensors, {"mode": mode, "text_tokens": len(draft), "reference_frames": len(codes)})


load_prompt = VoxtralPrompt.load
