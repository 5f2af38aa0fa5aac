"""From a request's options to a speech of the server: what all routes that speak have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from fastapi import FastAPI
from voice_clone_client import AsyncClient, Chunk

from .audio import find_format
from .http_errors import HTTPFailure
from .long_speech import LongSpeech, Plan
from .schemas import SpeechOptions
from .settings import Settings


class Spoken(Protocol):
    """A speech: `voice_clone_client.AsyncSpeech`, or several that follow each other."""

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Its chunks."""

    async def __anext__(self) -> Chunk:
        """The next one."""

    @property
    def info(self) -> Mapping[str, Any] | None:
        """What the server told last of it."""

    def close(self) -> None:
        """Stop it."""


async def arguments(app: FastAPI, options: SpeechOptions) -> dict[str, Any]:
    """The keyword arguments of `AsyncClient.speak` for these options; reference audio is fetched here.

    Raises:
        HTTPFailure: the options contradict each other, or name another model, or the audio cannot be had.
    """
    settings: Settings = app.state.settings
    if options.model is not None and options.model not in (settings.model, *settings.model_aliases):
        message = f"there is no model {options.model!r}; this gateway has {settings.model}"
        raise HTTPFailure(404, message, "model_not_found", param="model")
    wrong = options.check()
    if wrong is not None:
        raise HTTPFailure(400, wrong, "invalid_argument")
    audio = None if options.ref_audio is None else await app.state.references.load(options.ref_audio)
    return {
        "voice": options.voice_name,
        "reference_audio": audio,
        "reference_text": options.ref_text,
        "speaker_embedding": options.speaker_embedding,
        "x_vector_only": options.x_vector_only_mode,
        "language": options.language,
        "seed": options.seed,
        "max_frames": options.max_new_tokens,
        **{name: getattr(options, name) for name in _SAME},
    }


_SAME = (
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "do_sample",
    "subtalker_temperature",
    "subtalker_top_k",
    "subtalker_top_p",
    "subtalker_do_sample",
    "non_streaming_mode",
)


def usage(info: Mapping[str, Any] | None) -> dict[str, Any]:
    """The tokens of a speech. Input: those of the text, and the codec frames of the reference in context.

    Output: codec frames, 80 ms each.
    """
    info = info or {}
    text, audio = int(info.get("text_tokens", 0)), int(info.get("reference_frames", 0))
    output = int(info.get("frames", 0))
    return {
        "input_tokens": text + audio,
        "output_tokens": output,
        "total_tokens": text + audio + output,
        "input_token_details": {"text_tokens": text, "audio_tokens": audio},
    }


def check_format(options: SpeechOptions) -> None:
    """Refuse what no encoder can do before anything is spoken.

    Raises:
        InvalidArgument: the format does not have the sample rate.
    """
    find_format(options.response_format).choose_rate(options.sample_rate, 24000)


def long_plan(settings: Settings, **more: Any) -> Plan:
    """How texts are spoken sentence by sentence; `more` are further fields of the plan."""
    return Plan(
        max_characters=settings.sentence_characters,
        prefetch=settings.prefetch_sentences,
        parallel=settings.parallel_sentences,
        total_characters=settings.max_input_characters,
        **more,
    )


async def open_speech(app: FastAPI, text: str, options: SpeechOptions) -> Spoken:
    """Begin to speak `text`; a long one sentence by sentence.

    Raises:
        HTTPFailure: see `arguments`; also a text that is too long. Whatever else is wrong comes with the first chunk.
    """
    settings: Settings = app.state.settings
    most = settings.max_input_characters
    if len(text) > most:
        message = f"input has {len(text)} characters; at most {most} are allowed"
        raise HTTPFailure(400, message, "invalid_argument", param="input")
    given = {**await arguments(app, options), "deadline": settings.speech_seconds}
    if len(text) <= settings.sentence_characters:
        client: AsyncClient = app.state.client
        return client.speak(text, **given)
    speech = LongSpeech(app.state.client, long_plan(settings))
    speech.end(text)
    speech.begin(given)
    return speech
