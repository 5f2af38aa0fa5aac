"""/v1/audio/speech/stream: a WebSocket that speaks a text while it is still being written, and can be interrupted.

All messages are JSON objects in text frames, distinguished by `type`; audio is sent in binary frames.

From the client

    session.config     how to speak: the fields of POST /v1/audio/speech without input, stream and stream_format, and
                       those of `live.config.StreamConfig`. The first message; a later one applies to the
                       utterances that begin after it.
    input.text         text: the next piece of the utterance's text; it may end anywhere.
    input.flush        speak the text so far: its last sentence is complete, or in token_level its piece.
    input.done         the utterance's text is complete. The next input.text begins another one, spoken after it.
    cancel             stop speaking at once; text that was not spoken is dropped. played_ms: how much of the
                       utterance's audio the client has played so far.
    session.close      stop everything and close.

From the gateway

    audio.start        utterance_index, sentence_index, sentence_text, start, end (characters of the utterance's text),
                       format, sample_rate, seed. The audio of this sentence follows.
    mark               utterance_index, sentence_index, name, start: a `<mark>` of SSML, and where it is written. It is
                       in this sentence or before it, and follows the sentence's audio.start, as soon as it is written;
                       marks behind the last sentence come at the end.
    audio.chunk        utterance_index, sentence_index, audio_b64: audio, if configured instead of binary frames.
    audio.words        utterance_index, words: those whose times are known since the one before, if session.config has
                       timestamp_granularities ["word"]. Each has word, start and end in seconds of the utterance's
                       audio, estimated, and span [from, to) in characters of its text. The last ones come before
                       session.done.
    audio.done         utterance_index, sentence_index, total_bytes, milliseconds, finish_reason: all of the sentence's
                       audio was sent. It is whole if finish_reason is stop or length. info: the server's on it: mode,
                       cache status, seed, milliseconds by stage.
    session.done       utterance_index, total_sentences, characters, milliseconds, usage, finish_reason (the worst of
                       its sentences, or the error's name): the utterance is over.
    session.cancelled  utterance_index, sentences, characters, milliseconds, and, if a sentence was begun, partial with
                       its sentence_text, start, end and milliseconds; with timestamp_granularities also heard, the
                       text up to the word that was heard last. The answer to cancel, one for each utterance that
                       it ended, or a single one with utterance_index null. No audio follows it.
    warning            utterance_index, message: what of session.config was ignored or replaced.
    error              error: {message, type, param, code}. An invalid message has no other effect. With
                       utterance_index, that utterance has failed: its audio ends, the rest of its text is dropped, and
                       session.done with failed: true follows when its text is complete. partial_audio: whether some of
                       its audio was sent. A sentence whose end the model missed is such an error, unless session.config
                       has allow_partial.

With streaming_mode token_level the model reads the text while it is written, in pieces that are as long as it speaks
well (docs/appended_text.md), unless input.flush, flush_after_ms or renew_after_ms end them. Then a sentence of these
messages is a piece: sentence_text and end are those at its first audio, and a partial one ends with what the model had
read, which is a little more than was heard. A piece with the finish_reason text_left is followed by one that begins
with the first sentence that the model had not read; if that does not help, the utterance fails.

The frames of an utterance, concatenated, are one file. If the format or the speed looks ahead, the last bytes of a
sentence follow its audio.done. With stream_audio false each sentence is a file in one frame. Milliseconds are durations
at the speed of the audio. session.cancelled counts the audio that was sent or, with played_ms, played: complete
sentences, and characters up to their end.

A client that reads slowly slows the speech down and fills little memory: while 10 s of its audio wait, no further
sentence is begun, and no further piece while one waits. One that reads nothing for `--stall-seconds` loses its
connection. The key is sent as `Authorization: Bearer KEY` or, by browsers, which cannot set headers, as a subprotocol:
offer `voice-clone` and `bearer.` + the key in base64url without padding. Pages of other origins must be in the
gateway's list. Close codes: 1000 after session.close, 1008 after a timeout and for a message that comes too slowly,
1009 for one that is too large, 1013 where the gateway has no room: try again later.
"""

from __future__ import annotations

from fastapi import APIRouter, WebSocket

from ..live.own import OwnSession
from ..live.session import serve

router = APIRouter()


@router.websocket("/v1/audio/speech/stream")
async def stream_speech(websocket: WebSocket) -> None:
    """Speak texts while they are written; the module describes the protocol."""
    await serve(websocket, lambda key: OwnSession(websocket, key))
