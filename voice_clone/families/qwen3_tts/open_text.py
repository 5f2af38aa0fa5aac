"""The text of one stream while it is written: its tokens, what of them is read, and the frames that they grant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from voice_clone.appended_text import Appended
from voice_clone.autoregressive.talker import MoreText
from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.text import Tokenizer
from voice_clone.speech import has_words

Limit = Callable[[int], tuple[int, bool]]
"""Tokens of a text -> `TalkerRequest.max_frames` and `budgeted`."""


@dataclass(frozen=True, eq=False)
class Draft:
    """A piece of text before it is appended."""

    appended: Appended
    last: bool
    blank: bool

    def __len__(self) -> int:
        return len(self.appended.ids)


class Qwen3TTSText:
    """A `voice_clone.stages.OpenText`.

    Args:
        tokenizer: of the checkpoint.
        vocabulary: ids that the talker knows.
        limit: the frames that a text is granted.
        before: tokens that the talker has read with its first frame; negative while it reads a longer transcript.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, limit: Limit, before: int) -> None:
        self._rules = tokenizer.appended
        self._vocabulary = vocabulary
        self._limit = limit
        self._before = before
        self._tail = tokenizer.begin_text()
        self._ends: list[int] = []  # of the tokens, in characters
        self.blank = True

    @property
    def tokens(self) -> int:
        return len(self._ends)

    @property
    def before_audio(self) -> int:
        return max(0, self._before)

    def draft(self, text: str, last: bool) -> Draft:
        appended = self._rules.append(self._tail, text, last)
        if appended.ids.size and int(appended.ids.max()) >= self._vocabulary:
            raise InvalidArgument("the text has a token that the model does not know; remove control tokens")
        return Draft(appended, last, not has_words(text))

    def take(self, draft: Draft, cut: bool = False) -> MoreText:
        self._tail = draft.appended.tail
        self._ends += draft.appended.ends.tolist()
        self.blank = self.blank and draft.blank
        frames, budgeted = self._limit(self.tokens)
        return MoreText(draft.appended.ids, draft.last, frames, budgeted, cut)

    def read(self, frames: int) -> int:
        return max(0, min(self._before + frames - 1, self.tokens)) if frames else 0

    def characters(self, tokens: int) -> int:
        return self._ends[tokens - 1] if tokens else 0
