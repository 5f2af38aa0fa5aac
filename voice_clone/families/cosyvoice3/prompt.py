"""Text to token ids: Qwen2's byte-level BPE, with tokens for laughter, breath and phonemes. Needs no torch.

Each part of a prompt is encoded by itself, so no token spans two parts. Nothing is normalised: the model reads the
digits of a number as it likes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import CheckpointError, Internal, InvalidArgument, quoted
from voice_clone.families.cosyvoice3.config import (
    CODES,
    CONFIG_FILE,
    CROSS_LINGUAL,
    INSTRUCT,
    MEL,
    MEL_BANDS,
    MEL_FRAMES,
    SPEAKER,
    SPEAKER_SIZE,
    TOKENS,
    ZERO_SHOT,
    TalkerConfig,
    load_config,
)
from voice_clone.families.cosyvoice3.family import CARD
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.byte_pairs import open_vocabulary
from voice_clone.stages.prompt import CardPrompt
from voice_clone.stages.prompt_tensors import PromptTensors, tensor, tokens
from voice_clone.stages.protocols import Arrays, Prepared, check_reference
from voice_clone.stages.text import Ids, limited_ids, qwen2_tokenizer, reader

if TYPE_CHECKING:  # the library is imported where it is needed
    import tokenizers

VOCABULARY_FILE, MERGES_FILE = CARD.files
SYSTEM, END = "You are a helpful assistant.", "<|endofprompt|>"

_QWEN2 = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SOUNDS = (
    *("[breath]", "<strong>", "</strong>", "[noise]", "[laughter]", "[cough]", "[clucking]", "[accent]"),
    *("[quick_breath]", "<laughter>", "</laughter>", "[hissing]", "[sigh]", "[vocalized-noise]", "[lipsmack]", "[mn]"),
)
_SYSTEM_END = "<|endofsystem|>"
# The phonemes of the CMU dictionary; a vowel, marked here by *, has its stress behind it: none, 0, 1 or 2.
_ENGLISH = """
AA* AE* AH* AO* AW* AY* B CH D DH EH* ER* EY* F G HH IH* IY* JH K L M N NG OW* OY* P R S SH T TH UH* UW* V W Y Z ZH
"""
# Initials and finals of pinyin, in the order of their code points.
_CHINESE = """
a ai an ang ao b c ch d e ei en eng f g h i ian in ing iu ià iàn iàng iào iá ián iáng iáo iè ié iòng ióng iù iú iā iān
iāng iāo iē iě iōng iū iǎ iǎn iǎng iǎo iǒng iǔ j k l m n o ong ou p q r s sh t u uang ue un uo uà uài uàn uàng uá uái
uán uáng uè ué uì uí uò uó uā uāi uān uāng uē uě uī uō uǎ uǎi uǎn uǎng uǐ uǒ vè w x y z zh à ài àn àng ào á ái án áng
áo è èi èn èng èr é éi én éng ér ì ìn ìng í ín íng ò òng òu ó óng óu ù ùn ú ún ā āi ān āng āo ē ēi ēn ēng ě ěi ěn ěng
ěr ī īn īng ō ōng ōu ū ūn ǎ ǎi ǎn ǎng ǎo ǐ ǐn ǐng ǒ ǒng ǒu ǔ ǔn ǘ ǚ ǜ
"""


def added_tokens() -> tuple[str, ...]:
    """The tokens that follow the vocabulary, in the order of their ids."""
    stresses = ("", "0", "1", "2")
    english = [
        sound.rstrip("*") + stress for sound in _ENGLISH.split() for stress in stresses[: 4 if "*" in sound else 1]
    ]
    phonemes = [f"[{sound}]" for sound in (*english, *_CHINESE.split())]
    return *_QWEN2, END, *_SOUNDS, _SYSTEM_END, *phonemes


class Tokenizer:
    """The tokenizer of a checkpoint folder.

    Raises:
        CheckpointError: a file is missing or malformed, or has more tokens than the talker.
    """

    def __init__(self, folder: Path, config: TalkerConfig) -> None:
        names = VOCABULARY_FILE, MERGES_FILE
        self.vocabulary = open_vocabulary(folder, names, partial(_load, folder))
        if (tokens := self.vocabulary.size) > config.vocab_size:
            raise CheckpointError(
                f"{VOCABULARY_FILE}: has {tokens} tokens with the added ones, but vocab_size in {CONFIG_FILE} is "
                f"{config.vocab_size}"
            )

    def reference_ids(self, transcript: str = "") -> Ids:
        """What stands before the text: int32 [m].

        Args:
            transcript: of the reference clip; empty if the talker does not hear it.

        Raises:
            InvalidArgument: `transcript` holds a control token of the model.
        """
        return np.concatenate([self._encode(SYSTEM + END), self._plain("reference_text", transcript)])

    def instruction_ids(self, instruction: str) -> Ids:
        """What stands before the text where an instruction says how it is spoken: int32 [m].

        Raises:
            InvalidArgument: `instruction` holds a control token of the model.
        """
        self._plain("options.instruct", instruction)
        return self._encode(f"{SYSTEM} {instruction}{END}")

    def text_ids(self, text: str) -> Ids:
        """Those of the text: int32 [n].

        Raises:
            InvalidArgument: `text` holds a control token of the model.
        """
        return self._plain("text", text)

    def _plain(self, name: str, text: str) -> Ids:
        begin = text.find("<|")
        end = text.find("|>", begin + 2) if begin >= 0 else -1
        if end >= 0:  # such are all control tokens; one that this model does not know would be spoken
            raise InvalidArgument(
                f"the `{name}` holds {quoted(text[begin : end + 2][:40])}, a control token; remove it"
            )
        return self._encode(text)

    def _encode(self, text: str) -> Ids:
        return np.array(self.vocabulary.ids(text), np.int32)


def _load(folder: Path) -> tokenizers.Tokenizer:
    tokenizer = qwen2_tokenizer(folder, VOCABULARY_FILE, MERGES_FILE)
    ids = tokenizer.get_vocab().values()
    if sorted(ids) != list(range(len(ids))):
        raise CheckpointError(f"{VOCABULARY_FILE}: the ids of its tokens are not 0, 1, 2, ...")
    tokenizer.add_special_tokens(list(added_tokens()))
    return tokenizer


read = reader(load_config, Tokenizer)


def _vocabulary(config: TalkerConfig) -> int:
    return config.vocab_size


@dataclass(frozen=True, eq=False)
class Prompt(PromptTensors):
    """One synthesis request for the talker.

    Attributes:
        prefix_ids: the tokens before the text: what is asked for, and the transcript of the clip.
        text_ids: the tokens of the text.
        heard_tokens: the speech tokens of the clip; none if the talker does not hear it.
    """

    prefix_ids: Ids = field(metadata=tokens(_vocabulary))
    text_ids: Ids = field(metadata=tokens(_vocabulary))
    heard_tokens: NDArray[np.uint16] = field(metadata=tensor(np.uint16, None, below=lambda config: CODES))


@dataclass(frozen=True, eq=False)
class Clip(PromptTensors):
    """What the decoder gets of the voice, whatever the talker hears.

    Attributes:
        mel: [2 n, 80] where there are n tokens, the log-mel spectrogram in steps of 1 / `MEL_STEPS`.
    """

    speech_tokens: NDArray[np.uint16] = field(metadata=tensor(np.uint16, None, least=1, below=CODES))
    mel: NDArray[np.int16] = field(metadata=tensor(np.int16, None, MEL_BANDS))
    speaker: NDArray[np.float32] = field(metadata=tensor(np.float32, SPEAKER_SIZE))

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.mel) != MEL_FRAMES * len(self.speech_tokens):
            raise InvalidArgument(f"{MEL} must be INT16 [{MEL_FRAMES * len(self.speech_tokens)}, {MEL_BANDS}]")


class CosyVoice3Prompt(CardPrompt[TalkerConfig, Tokenizer, Arrays]):
    """The prompt stage of a checkpoint."""

    card, read = CARD, staticmethod(read)

    def draft(self, speech: SpeechRequest) -> Arrays:
        """The tokens of the text and, as `prefix_ids`, of an instruction if there is one."""
        self.check(speech)
        text_ids, instruction = self.text_ids(speech.text), speech.options.get(INSTRUCT)
        if instruction is None:
            return {"text_ids": text_ids}
        if speech.x_vector_only is False:
            raise InvalidArgument(
                f"with `options.{INSTRUCT}` the voice is not cloned in context; leave out either it or `x_vector_only`"
            )
        tokenize = self.tokenizer.instruction_ids
        prefix_ids = limited_ids(f"options.{INSTRUCT}", instruction, tokenize, self.max_tokens)
        return {"text_ids": text_ids, "prefix_ids": prefix_ids}

    def prepare(self, speech: SpeechRequest, draft: Arrays, voice: ResolvedVoice | None) -> Prepared:
        assert voice is not None  # `draft` has refused a speaker embedding
        clip = aligned(voice.artifacts)
        tokens = clip[TOKENS]
        check_reference(len(tokens), self.max_reference_frames)
        if "prefix_ids" in draft:
            mode, prefix_ids, heard = INSTRUCT, draft["prefix_ids"], tokens[:0]
        elif voice.transcript is None or speech.x_vector_only:
            mode, prefix_ids, heard = CROSS_LINGUAL, self.tokenizer.reference_ids(), tokens[:0]
        else:
            mode, prefix_ids, heard = ZERO_SHOT, self.reference_ids(voice.transcript), tokens
        tensors = {**draft, "prefix_ids": prefix_ids, "heard_tokens": heard, **clip}
        info = {
            "mode": mode,
            "text_tokens": len(draft["text_ids"]),
            "reference_tokens": len(prefix_ids),
            "reference_frames": len(tokens),
        }
        return Prepared(tensors, info)


def aligned(artifacts: Arrays) -> Arrays:
    """The artifacts of a clip, its speech tokens and its mel spectrogram cut to the same length.

    The two are computed at two sample rates, whose frames do not end together.

    Raises:
        Internal: they are not those of this family.
        InvalidArgument: there is no whole token.
    """
    tokens, mel, speaker = artifacts[TOKENS], artifacts[MEL], artifacts[SPEAKER]
    if tokens.ndim != 1 or mel.shape[1:] != (MEL_BANDS,) or speaker.shape != (SPEAKER_SIZE,):
        raise Internal("the artifacts of this voice belong to another checkpoint")
    count = min(len(tokens), len(mel) // MEL_FRAMES)
    if not count:
        raise InvalidArgument("the clip of this voice is too short; give some seconds of speech")
    return {TOKENS: np.ascontiguousarray(tokens[:count]), MEL: mel[: MEL_FRAMES * count], SPEAKER: speaker}


load_prompt = CosyVoice3Prompt.load
