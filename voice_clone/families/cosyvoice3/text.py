"""Text to token ids: Qwen2's byte-level BPE, with tokens for laughter, breath and phonemes. Needs no torch.

Each part of a prompt is encoded by itself, so no token spans two parts. Nothing is normalised: the model reads the
digits of a number as it likes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from voice_clone.errors import CheckpointError, InvalidArgument, quoted
from voice_clone.families.cosyvoice3.config import BLANK, CONFIG_FILE, TalkerConfig, load_config
from voice_clone.stages.text import Ids, qwen2_tokenizer

VOCABULARY_FILE, MERGES_FILE = f"{BLANK}/vocab.json", f"{BLANK}/merges.txt"
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
        self._tokenizer = qwen2_tokenizer(folder, VOCABULARY_FILE, MERGES_FILE)
        ids = self._tokenizer.get_vocab().values()
        if sorted(ids) != list(range(len(ids))):
            raise CheckpointError(f"{VOCABULARY_FILE}: the ids of its tokens are not 0, 1, 2, ...")
        added = added_tokens()
        self._tokenizer.add_special_tokens(list(added))
        if (tokens := self._tokenizer.get_vocab_size()) > config.vocab_size:
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
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


def read(folder: Path) -> tuple[TalkerConfig, Tokenizer]:
    """Configuration and tokenizer of the checkpoint in `folder`.

    Raises:
        CheckpointError: it cannot be served.
    """
    config = load_config(folder)
    return config, Tokenizer(folder, config)
