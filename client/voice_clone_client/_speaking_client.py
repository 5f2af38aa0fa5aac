"""The methods of the synchronous client that speak."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from voice_clone_text.parts import Part, WrittenText

from . import requests
from ._client_base import ClientBase
from .long_text.long_speech import LongSpeech
from .long_text.plan import Plan
from .responses import SpeechReader
from .servers import channel
from .servers.blocking import Servers
from .speeches.parts_reader import PartsReader
from .speeches.speech import Speech
from .speeches.streaming_text import PartSpeech, StreamingTextSpeech
from .types import LongOptions, SpeechOptions, StreamOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Speaking(ClientBase[Servers]):
    """The part of `Client` that speaks."""

    _connect = Servers

    @abstractmethod
    def family(self, model: str | None = None, limit: float | None = None) -> str:
        """See `Client`."""

    def speak(
        self,
        text: str,
        *,
        deadline: float | None = None,
        **options: Unpack[SpeechOptions],
    ) -> Speech:
        """Speak `text` in a voice: one of `voice`, `reference_audio`, `speaker_embedding`, `voice_prompt`. Only a
        family that needs no voice also speaks without any of them.

        Args:
            text: the words.
            deadline: maximum seconds of the whole speech.
            **options: see `SpeechOptions`.

        Raises, here or with the first chunk:
            InvalidArgument, VoiceNotFound, Unsupported, Overloaded, DeadlineExceeded, and with any chunk BrokenStream.
        """
        request = requests.speech(text, options, self._owner, self._mark)
        began = time.monotonic()
        request.model_name = self.family(options.get("model"), deadline)
        left = None if deadline is None else deadline - (time.monotonic() - began)
        call = self._servers.stream(request, left, headers=channel.metadata(options.get("headers"), None))
        return Speech(call, began, SpeechReader(options.get("require_whole", False), self._mark))

    def speak_long(
        self,
        text: str,
        *,
        deadline: float | None = None,
        **options: Unpack[LongOptions],
    ) -> LongSpeech:
        """Speak a text of any length in one voice, sentence by sentence. A short one is the speech that `speak` makes.

        While a sentence is read, the next ones are made, a bounded number of them. The gateway speaks a text in the
        same way: with the same `seed` it has the same samples. The `info` of the speech has the number of `sentences`,
        of `retries` if there were any, and sums of tokens and frames; its `finish_reason` is the worst of theirs.
        Without a voice a long text is not split, as each sentence would have a voice of its own.

        Args:
            text: the words.
            deadline: maximum seconds of the whole speech.
            **options: see `LongOptions`.

        Raises, here or with a chunk: as `speak`.
        """
        plan, given = Plan.of(options)
        given = requests.repeatable(text, given)
        return LongSpeech(self, plan, text, given, deadline, at_once=requests.is_voiceless(given))

    def speak_stream(
        self,
        text: Iterable[str],
        *,
        deadline: float | None = None,
        **options: Unpack[StreamOptions],
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
            deadline: maximum seconds of the whole speech.
            **options: see `StreamOptions`.

        Raises, here or with the first chunk: as `speak`. Unsupported: the family needs the whole text at once.
        """
        request = requests.speech(None, options, self._owner, self._mark, StreamOptions)
        began = time.monotonic()
        request.model_name = family = self.family(options.get("model"), deadline)
        changed, written = threading.Condition(), WrittenText()

        def begin(part: Part) -> PartSpeech:
            now = time.monotonic()
            left = None if deadline is None else deadline - (now - began)
            call = self._servers.stream(requests.of_part(request, part), left, part.id, repeatable=False)
            return PartSpeech(call, now, part, written, changed, self._timeout, family, self._mark)

        whole = options.get("require_whole", False)
        reader = PartsReader(written, options.get("seed"), options.get("max_frames"), whole)
        return StreamingTextSpeech(begin, began, text, reader, changed)
