"""From the options of a request to a speech of the server; shared by all routes that speak."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from fastapi import FastAPI
from voice_clone_client import AsyncClient, Chunk

from .audio import find_format
from .http.errors import HTTPFailure
from .long_text.long_speech import LongSpeech, Plan
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
        """The latest info of the server on it."""

    def close(self) -> None:
        """Stop it."""


async def arguments(app: FastAPI, options: SpeechOptions) -> dict[str, Any]:
    """The keyword arguments of `AsyncClient.speak` for these options; fetches reference audio.

    Raises:
        HTTPFailure: the options contradict each other or name an unknown model, or the audio cannot be fetched.
        VoiceCloneError: the default model is needed, and the server did not answer it.
    """
    family = await app.state.families.choose(options.model)
    error = options.check()
    if error is not None:
        raise HTTPFailure(400, error, "invalid_argument")
    audio = None if options.ref_audio is None else await app.state.references.load(options.ref_audio)
    return {
        "model": family,
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
    "non_streaming_mode",
    "options",
)


def usage(info: Mapping[str, Any] | None) -> dict[str, Any]:
    """The tokens of a speech. Input: text tokens, and frames of the reference in context. Output: frames."""
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
    """Check the sample rate of the output before the speech begins.

    Raises:
        InvalidArgument: the format does not support it.
    """
    if options.sample_rate is not None:
        find_format(options.response_format).check_rate(options.sample_rate)


def long_plan(settings: Settings, **more: Any) -> Plan:
    """The plan of a text that is spoken sentence by sentence; `more` are further fields of it."""
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
        HTTPFailure: see `arguments`; also a text that is too long. Any other error is raised with the first chunk.
    """
    settings: Settings = app.state.settings
    most = settings.max_input_characters
    if len(text) > most:
        message = f"input has {len(text)} characters; at most {most} are allowed"
        raise HTTPFailure(400, message, "invalid_argument", param="input")
    speak = {**await arguments(app, options), "deadline": settings.speech_seconds}
    if len(text) <= settings.sentence_characters:
        client: AsyncClient = app.state.client
        return client.speak(text, **speak)
    speech = LongSpeech(app.state.client, long_plan(settings))
    speech.end(text)
    speech.begin(speak)
    return speech
