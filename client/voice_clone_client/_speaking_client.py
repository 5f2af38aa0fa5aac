"""The methods of the synchronous client that speak."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from . import _requests
from ._responses import SpeechReader
from ._servers import channel
from ._servers.blocking import Servers
from ._speeches.parts import Part, PartsReader, WrittenText
from ._speeches.speech import Speech
from ._speeches.streaming_text import PartSpeech, StreamingTextSpeech
from .clips import Source
from .long_text.long_speech import LongSpeech
from .long_text.plan import Plan
from .sentences import MAX_CHARACTERS
from .types import Knobs, SpeechOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Speaking:
    """The part of `Client` that speaks."""

    _servers: Servers
    _timeout: float | None
    _owner: str | None
    _mark: str | None

    @abstractmethod
    def _family(self, model: str | None = None, limit: float | None = None) -> str:
        """See `Client`."""

    def speak(
        self,
        text: str,
        *,
        voice: str | None = None,
        reference_audio: Source | None = None,
        reference_text: str | None = None,
        speaker_embedding: ArrayLike | None = None,
        voice_prompt: Source | None = None,
        x_vector_only: bool | None = None,
        deadline: float | None = None,
        model: str | None = None,
        require_whole: bool = False,
        headers: Mapping[str, str] | None = None,
        **knobs: Unpack[Knobs],
    ) -> Speech:
        """Speak `text` in a voice: one of `voice`, `reference_audio`, `speaker_embedding`, `voice_prompt`. Only a
        family that needs no voice also speaks without any of them.

        Args:
            text: the words.
            voice: a registered voice.
            reference_audio: path or bytes of a clip of 1 to 30 s, in the formats of `clips`.
            reference_text: its transcript, for in-context cloning.
            speaker_embedding: float [dimension of the model].
            voice_prompt: path or bytes of a bundle of one voice, as `export(name)` gives it: it speaks as it would
                where it is registered, without a registration and without an extraction.
            x_vector_only: True clones by the speaker embedding alone, False requires in-context cloning.
            deadline: maximum seconds of the whole speech.
            model: the family that speaks this text; None takes the client's.
            require_whole: raise `Incomplete` after the last chunk if the model missed the end; see `Speech.whole`.
            headers: sent with this call alone, such as `traceparent` of W3C's Trace Context.
            **knobs: see `Knobs`.

        Raises, here or with the first chunk:
            InvalidArgument, VoiceNotFound, Unsupported, Overloaded, DeadlineExceeded, and with any chunk BrokenStream.
        """
        request = _requests.synthesis(
            text,
            voice,
            reference_audio,
            reference_text,
            speaker_embedding,
            voice_prompt,
            x_vector_only,
            self._owner,
            self._mark,
            knobs,
        )
        began = time.monotonic()
        request.model_name = self._family(model, deadline)
        left = None if deadline is None else deadline - (time.monotonic() - began)
        call = self._servers.stream(request, left, headers=channel.metadata(headers, None))
        return Speech(call, began, SpeechReader(require_whole, self._mark))

    def speak_long(
        self,
        text: str,
        *,
        deadline: float | None = None,
        sentence_characters: int = MAX_CHARACTERS,
        sentence_pause: float = 0.0,
        paragraph_pause: float = 0.0,
        retries: int = 2,
        hold: bool = False,
        **options: Unpack[SpeechOptions],
    ) -> LongSpeech:
        """Speak a text of any length in one voice, sentence by sentence. A short one is the speech that `speak` makes.

        While a sentence is read, the next ones are made, a bounded number of them. The gateway speaks a text in the
        same way: with the same `seed` it has the same samples. The `info` of the speech has the number of `sentences`,
        of `retries` if there were any, and sums of tokens and frames; its `finish_reason` is the worst of theirs.
        Without a voice a long text is not split, as each sentence would have a voice of its own.

        Args:
            text: the words.
            deadline: maximum seconds of the whole speech.
            sentence_characters: a longer text is split, and a longer sentence is cut.
            sentence_pause, paragraph_pause: seconds of silence between sentences, and between paragraphs.
            retries: further attempts at a sentence whose end the model missed, as long as nothing of it was read. With
                a `seed` of the caller's, or `do_sample` False, there are none: they would be the same.
            hold: a sentence is read when it is whole, so each of them can be tried again. `read` holds by itself.
            **options: as of `speak`; `max_frames` is the limit of each sentence.

        Raises, here or with a chunk: as `speak`.
        """
        options = _requests.repeatable(text, options)
        plan = Plan(
            max_characters=sentence_characters,
            sentence_pause=sentence_pause,
            paragraph_pause=paragraph_pause,
            retries=retries,
            hold=hold,
        )
        return LongSpeech(self, plan, text, options, deadline, at_once=_requests.is_voiceless(options))

    def speak_stream(
        self,
        text: Iterable[str],
        *,
        voice: str | None = None,
        reference_audio: Source | None = None,
        reference_text: str | None = None,
        speaker_embedding: ArrayLike | None = None,
        voice_prompt: Source | None = None,
        x_vector_only: bool | None = None,
        deadline: float | None = None,
        model: str | None = None,
        require_whole: bool = False,
        **knobs: Unpack[Knobs],
    ) -> Speech:
        """Speak a text while it is written, such as the tokens of a language model.

        With several servers one of them speaks it, and no other takes over if that fails.

        A model speaks well only so much in one piece, so a long text is spoken in parts, each of some sentences; the
        rules are in docs/appended_text.md. The audio of a part is that of its whole text. If the model ends a part too
        early, another part goes on with the first sentence that was not read; `info` counts `parts` and `continued`.

        When the text pauses, so does the speech; after some seconds without text the server speaks what it has, and
        `finish_reason` is `text_timeout`. A voice that is cloned in context begins
        later than one with `x_vector_only`: the model first reads about ten tokens of text for each second of its clip.

        Args:
            text: its pieces, cut anywhere. A thread iterates them.
            The others: as of `speak`.

        Raises, here or with the first chunk: as `speak`. Unsupported: the family needs the whole text at once.
        """
        request = _requests.synthesis(
            None,
            voice,
            reference_audio,
            reference_text,
            speaker_embedding,
            voice_prompt,
            x_vector_only,
            self._owner,
            self._mark,
            knobs,
        )
        began = time.monotonic()
        request.model_name = family = self._family(model, deadline)
        changed, written = threading.Condition(), WrittenText()

        def begin(part: Part) -> PartSpeech:
            now = time.monotonic()
            left = None if deadline is None else deadline - (now - began)
            call = self._servers.stream(_requests.of_part(request, part), left, part.id, repeatable=False)
            return PartSpeech(call, now, part, written, changed, self._timeout, family, self._mark)

        reader = PartsReader(written, knobs.get("seed"), knobs.get("max_frames"), require_whole)
        return StreamingTextSpeech(begin, began, text, reader, changed)
