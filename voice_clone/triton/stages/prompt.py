"""`<family>_prompt`: text and voice to the talker's prompt.

in    those of `request_fields.FIELDS` that this stage reads, all optional; see `SpeechRequest`. The request parameter
      `owner` says for whom the caller acts, `stream_id` names the stream, so that speech_whole can cancel it; without
      it the stream gets an id of its own.
out   prompt       STRING [1]  the family's arrays for its talker, packed
      prompt_info  STRING [1]  JSON: `stream_id`, `origin` (the next stages keep what they compute under it, and drop
      that when the voice is deleted), and what the first and the last chunk report on voice and text

It keeps nothing of a voice.
"""

from __future__ import annotations

import json
import time
import uuid
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from voice_clone.errors import InvalidArgument, SpeakerNotFound, Unsupported, VoiceCloneError, quoted
from voice_clone.lru_cache import Origin, scope_of
from voice_clone.request_fields import SOURCES
from voice_clone.settings import PromptSettings, Settings
from voice_clone.speakers.record import NEUTRAL
from voice_clone.speech import ResolvedVoice, SpeechRequest, read_reply
from voice_clone.stages.directions import directed, read_directions, without_directions
from voice_clone.stages.protocols import PromptStage
from voice_clone.stages.requests import in_words
from voice_clone.triton.calls import call
from voice_clone.triton.model import Model
from voice_clone.triton.notices import NoticesSender
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.tensors import Value, pack


class PromptModel(Model):
    """The base of `<family>_prompt`. A family sets `load_stage`."""

    stage = "prompt"
    threads = 16  # a cold voice occupies one while its clip is encoded

    @staticmethod
    @abstractmethod
    def load_stage(given: Settings, /) -> PromptStage[Any]:
        """The family's stage, as the settings ask for it."""

    def load(self, settings: Settings) -> None:
        self._stage = self.load_stage(settings)
        self._listeners = NoticesSender(f"{self.family}_talker", f"{self._stage.decoder}_code2wav")
        self._presets = {preset.casefold(): preset for preset in self._stage.presets}
        self._directions = read_directions(PromptSettings.read(settings, "checkpoint_dir"))

    def handle(self, request: Request, responder: Responder) -> Mapping[str, Value]:
        began = time.monotonic()
        speech, strengths = without_directions(read_speech(request, self._stage.voiceless))
        speech, words = in_words(speech)
        caller, name = self.caller(request), speech.text_stream or stream_id(request) or uuid.uuid4().hex
        if speech.text_stream is not None and not self._stage.appends:
            raise Unsupported(
                "this model needs the whole text before it speaks; send it as `text`, without `text_stream`"
            )
        draft = self._stage.draft(speech)
        if caller.urgency == "interactive":
            self._listeners.send(name)
        found = time.monotonic()
        voice, source, (origin, scope) = self._resolve(speech)
        if voice is None and speech.voice is not None:
            speech = replace(speech, voice=source["voice"])
        if strengths:
            voice = directed(voice, strengths, self._directions)
            source = {**source, "directions": strengths}
            source.pop("loudness", None)  # it is that of the voice without them
        if words is not None and "style" not in source:
            speech, draft = self._instructed(speech, words)
            source = {**source, "instructions": words}
        prepared = self._stage.prepare(speech, draft, voice)
        info = {
            "stream_id": name,
            "origin": Origin(origin, found, speech.kept, scope, caller.name),
            **source,
            **prepared.info,
            "prompt_ms": round(1e3 * (time.monotonic() - began), 3),
        }
        return {"prompt": pack(prepared.tensors), "prompt_info": json.dumps(info)}

    def close(self) -> None:
        self._listeners.close()

    def _instructed(self, speech: SpeechRequest, words: str) -> tuple[SpeechRequest, Any]:
        """The speech with these instructions, and its draft.

        Raises:
            Unsupported: the model follows none.
            InvalidArgument: the speech has others, or the model does not know these.
        """
        option = self._stage.instructions
        if not option:
            raise Unsupported(
                f"this model follows no instructions, and the voice has no `style` {quoted(words)}; ask for "
                f"{words},{NEUTRAL}"
            )
        if option in speech.options:
            raise InvalidArgument(f"`style` and `options.{option}` both say how to speak; leave one out")
        speech = replace(speech, options={**speech.options, option: words})
        try:
            return speech, self._stage.draft(speech)
        except VoiceCloneError as error:
            raise error.renamed({f"options.{option}": "style"}) from None

    def _resolve(self, speech: SpeechRequest) -> tuple[ResolvedVoice | None, dict[str, Any], tuple[str, str]]:
        """Return the voice from speaker_cache, what `info` says of it, and its origin with the scope.

        There is no voice for a ready embedding, for a voice of the checkpoint itself (case does not matter), and for a
        speech without any.
        """
        if speech.speaker_embedding is not None or all(getattr(speech, source) is None for source in SOURCES):
            return None, {"cache": "none"}, ("", scope_of(speech.owner))
        options: dict[str, Any] = {} if speech.owner is None else {"owner": speech.owner}
        if not speech.cache:
            options["cache"] = False
        if speech.style is not None:
            options["style"] = speech.style
        inputs = {
            "operation": "resolve",
            "model_type": self.family,
            "name": speech.voice,
            "audio": speech.reference_audio,
            "reference_text": speech.reference_text,
            "voice_prompt": speech.voice_prompt,
            "options": json.dumps(options) if options else None,
        }
        asked = time.monotonic()
        try:
            reply = call("speaker_cache", inputs)
        except VoiceCloneError as error:
            absent = isinstance(error, SpeakerNotFound) or (
                isinstance(error, Unsupported) and NEUTRAL in _styles(speech)
            )
            preset = self._preset(speech, speech.voice or "") if absent else None
            if preset is not None:
                return None, {"cache": "preset", "voice": preset}, ("", "")
            if isinstance(error, SpeakerNotFound) and self._presets:
                raise SpeakerNotFound(
                    f"{error.text}; this model's own voices are {', '.join(self._stage.presets)}"
                ) from None
            raise error.renamed({"name": "voice", "audio": "reference_audio"}) from None
        waited_ms = 1e3 * (time.monotonic() - asked)
        result = json.loads(reply["result"][0])
        if "preset" in result:  # an alias stands for it
            return None, {"cache": "preset", "voice": self._preset(speech, result["preset"])}, ("", "")
        return *read_reply(speech, result, reply["artifacts"][0], waited_ms), (result["origin"], result["scope"])

    def _preset(self, speech: SpeechRequest, name: str) -> str | None:
        """The voice of the checkpoint of that name; None: it has none.

        Raises:
            InvalidArgument: the speech asks for a style, and such a voice has none but the neutral one.
        """
        preset = self._presets.get(name.casefold())
        if preset is not None and NEUTRAL not in _styles(speech):
            raise InvalidArgument(f"the voice {preset!r} of this model has no `style` but {NEUTRAL}; leave it out")
        return preset


def _styles(speech: SpeechRequest) -> list[str]:
    return [style.strip().lower() for style in (speech.style or NEUTRAL).split(",")]


def stream_id(request: Request) -> str | None:
    """Return the id that the caller gave to its stream. The talker checks its length.

    Raises:
        InvalidArgument: it is no text.
    """
    given = request.parameter("stream_id")
    if given is not None and not isinstance(given, str):
        raise InvalidArgument("the parameter `stream_id` must be a text")
    return given


def read_speech(request: Request, voiceless: bool = False) -> SpeechRequest:
    """Return the speech that a request asks for; `voiceless` is as in `PromptStage`.

    Raises:
        InvalidArgument: an input is malformed, missing, or contradicts another one.
    """
    return SpeechRequest(
        text=request.text("text") or "",
        voice=request.text("voice"),
        reference_audio=request.raw("reference_audio"),
        reference_text=request.text("reference_text"),
        speaker_embedding=request.array("speaker_embedding"),
        x_vector_only=request.number("x_vector_only"),
        language=request.text("language"),
        style=request.text("style"),
        options=request.json_object("options"),
        text_stream=request.text("text_stream"),
        owner=request.parameter("owner"),
        voice_prompt=request.raw("voice_prompt"),
        cache=request.number("cache") is not False,
        voiceless=voiceless,
    )
