"""What the talker learns from: clips with their tokens, and which token is spoken in which frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.demo_voice.qwen3_tts.alignment import Pronunciations, phones_at, places_of_phones
from tools.demo_voice.qwen3_tts.corpus import CodedClip, Corpus
from tools.demo_voice.qwen3_tts.features import FRAME
from tools.demo_voice.synthesis import SAMPLE_RATE
from voice_clone.families.qwen3_tts.prompt import Tokenizer


@dataclass(frozen=True, eq=False)
class Spoken:
    """A clip as the talker sees it.

    Attributes:
        clip: who spoke, and how it sounds.
        tokens: int64 [n].
        codes: int64 [frames, 16].
        spoken: int64 [frames], which of `tokens` each frame speaks.
    """

    clip: CodedClip
    tokens: NDArray[np.int64]
    codes: NDArray[np.int64]
    spoken: NDArray[np.int64]


class TalkerCorpus:
    """A corpus with tokens.

    Args:
        lengths: of the tokens, in characters.
    """

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, lengths: Mapping[int, int], known: Pronunciations) -> None:
        self.corpus = corpus
        self._tokenizer, self._lengths, self._known = tokenizer, lengths, known
        self._prepared: dict[tuple[int, bool], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self.frames = corpus.lengths()

    def spoken(self, index: int, copy: int, follows: bool = False) -> Spoken:
        """Utterance `index` in its variation `copy`; `follows`: another sentence comes before it in the text."""
        clip = self.corpus.clip(index, copy)
        tokens, of_phone = self._prepare(index, clip, follows)
        delay, factor = clip.variation.delay / SAMPLE_RATE, clip.variation.factor
        centres = ((np.arange(len(clip.codes)) + 0.5) * FRAME / SAMPLE_RATE - delay) * factor
        spoken = of_phone[phones_at(clip.record.utterance, centres)]
        return Spoken(clip, tokens, clip.codes.astype(np.int64), spoken)

    def _prepare(self, index: int, clip: CodedClip, follows: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tokens of an utterance, and which of them each phone speaks."""
        if (index, follows) not in self._prepared:
            record = clip.record
            text = " " + record.text if follows else record.text
            tokens = self._tokenizer.text_ids(text).astype(np.int64)
            ends = np.cumsum([self._lengths[int(token)] for token in tokens])
            places = places_of_phones(text, record.utterance, self._known)
            of_phone = np.searchsorted(ends, places, side="right").clip(max=len(tokens) - 1)
            self._prepared[index, follows] = tokens, of_phone
        return self._prepared[index, follows]
