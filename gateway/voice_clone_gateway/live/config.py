"""How the texts of a session are spoken."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from voice_clone_text.sentences import Granularity

from ..schemas import FormatName, Granularities, TextOptions

_Pause = Annotated[int, Field(ge=0, le=10_000)]


class StreamConfig(TextOptions):
    """`session.config`: how later texts are spoken. All fields of a speech request except its text, and these."""

    type: Literal["session.config"]
    response_format: FormatName = "pcm"
    """The audio's format, see POST /v1/audio/speech."""
    stream_audio: bool = True
    """True: the frames of an utterance are one continuous file, sent as it is made. False: each sentence is a complete
    file in one frame."""
    audio_frames: Literal["binary", "base64"] = "binary"
    """The form of the audio: binary frames, or base64 in `audio.chunk` messages."""
    timestamp_granularities: Granularities | None = None
    """`["word"]`: messages `audio.words` have the times of words."""
    split_granularity: Granularity = "sentence"
    """The unit that is spoken at once: a sentence, a clause, or the whole text before `input.done`."""
    sentence_pause_ms: _Pause = 0
    """Silence between sentences."""
    paragraph_pause_ms: _Pause = 0
    """Silence between paragraphs."""
    streaming_mode: Literal["sentence", "token_level"] = "sentence"
    """`token_level`: the model reads the text as it is written, and speaks several sentences in one piece. It waits
    where the text does. For models that can; granularity and pauses then have no effect, and stream_audio must be
    true."""
    flush_after_ms: Annotated[int, Field(ge=1, le=60_000)] | None = None
    """With token_level: if no text comes for as long after the end of a sentence, the piece ends, and the model does
    not wait. Later text is a new piece, with the next sentence_index. Its audio then differs from that of the whole
    text."""
    renew_after_ms: Annotated[int, Field(ge=1000, le=600_000)] | None = None
    """With token_level: the most text of a piece, as the time that it takes at twelve characters a second. By default a
    piece is as long as the model speaks well."""

    @property
    def size(self) -> int:
        return len(self.reference_audio or "") + len(self.voice_prompt or "") + len(self.reference_text or "")

    def check(self) -> str | None:
        token_level = self.streaming_mode == "token_level"
        if token_level and not self.stream_audio:
            return "`streaming_mode token_level` sends the audio as it is made; leave out `stream_audio false`"
        if not token_level and (self.flush_after_ms or self.renew_after_ms):
            return "`flush_after_ms` and `renew_after_ms` belong to `streaming_mode token_level`"
        if self.input_type == "script":
            return "`input_type script` is for a text that is whole; send a session.config for each voice"
        return super().check()
