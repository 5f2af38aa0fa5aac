"""From the options of a request to a speech of the server; shared by all routes that speak."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voice_clone_client import AsyncClient, InvalidArgument
from voice_clone_client.fields import SOURCES
from voice_clone_client.long_text.long_speech import AsyncLongSpeech
from voice_clone_client.long_text.plan import Plan
from voice_clone_client.long_text.speaker import Speech
from voice_clone_sound.async_parts import AsyncParts
from voice_clone_text.sequence import Part

from ..audio import Encoder, find_format
from ..fields import Knobs
from ..http.keys import Key
from ..schemas import SpeechOptions, SpeechRequest
from ..services import Services
from ..settings import Settings
from .segments import Segments, has_segments, segments_of
from .spoken_words import SpokenWords

MOST_SENTENCES = 10_000  # of a text


@dataclass(frozen=True)
class Order:
    """What to ask the server for, and what the caller learns about it."""

    arguments: dict[str, Any]
    """Of `AsyncClient.speak`."""
    warnings: tuple[str, ...]
    """Sentences: what was ignored or replaced."""
    voiceless: bool
    """Whether it is spoken without a voice."""
    speed: float = 1.0
    """Factor of the tempo, which the encoder sets."""
    loudness: float | None = None
    """LUFS that its voice is to have."""
    words: SpokenWords | None = None
    """When they are spoken; None if nobody asks."""

    @property
    def family(self) -> str:
        return str(self.arguments["model"])


def check_options(settings: Settings, options: SpeechOptions) -> None:
    """Check what can be checked without the server.

    Raises:
        InvalidArgument: the options contradict each other, or are not supported by a strict gateway or by the format.
    """
    error = options.check()
    if error is None and settings.strict:
        error = next((f"{text}; leave it out, this gateway is strict" for text in options.ignored()), None)
    if error is not None:
        raise InvalidArgument(error)
    if options.sample_rate is not None:
        find_format(options.response_format).check_rate(options.sample_rate)


def check_request(settings: Settings, request: SpeechRequest) -> None:
    """Check what can be checked without the server, also the length of the text; see `check_options`."""
    most = settings.max_input_characters
    check_options(settings, request)
    if len(request.input) > most:
        raise InvalidArgument(f"`text` has {len(request.input)} characters; at most {most} are allowed")


def encoder(
    options: SpeechOptions,
    source_rate: int,
    speed: float,
    *,
    streaming: bool,
    comment: str | None,
    path: Path | None = None,
) -> Encoder:
    """The encoder of a speech whose samples have this rate in Hz; see `Encoder`."""
    return Encoder(
        options.response_format,
        source_rate,
        options.sample_rate,
        speed,
        streaming=streaming,
        comment=comment,
        bit_rate=options.bit_rate,
        limited=options.loudness is not None,
        path=path,
    )


async def is_voiceless(services: Services, options: SpeechOptions) -> bool:
    """Whether to speak without a voice: the options have none, and their model needs none.

    Raises:
        HTTPFailure: the model needs a voice, and there is none; or the options name an unknown model.
        VoiceCloneError: the server had to be asked, and did not answer.
    """
    if any(getattr(options, name) is not None for name in SOURCES):
        return False
    families = services.families
    if (await families.get(await families.choose(options.model))).voiceless:
        return True
    if not services.settings.default_voice:
        names = ", ".join(f"`{name}`" for name in SOURCES)
        raise InvalidArgument(f"give one of {names}; a gateway with --default-voice needs none")
    return False


async def order(services: Services, client: AsyncClient, options: SpeechOptions, hold: Callable[[int], None]) -> Order:
    """The order for options that `check_options` accepts; fetches reference audio.

    Args:
        client: that of the key.
        hold: called with the bytes of its audio and of its prompt; what it raises is raised.

    Raises:
        HTTPFailure: the options name an unknown model or lack a voice, or the audio cannot be fetched.
        VoiceCloneError: the server had to be asked, and did not answer.
    """
    voiceless = await is_voiceless(services, options)
    family = await services.families.choose(options.model)
    more, ignored = await _instructions(services, family, options)
    services.metrics.retried.labels(family)  # 0 from its first speech on: a rate needs it
    warnings = [*ignored, *options.ignored()]
    voice = options.voice_name
    if not voiceless and all(getattr(options, name) is None for name in SOURCES if name != "voice"):
        voice = None if voice is None else await services.voice_ids.name_of(client, voice)
        voice, warning = await services.voice_names.choose(voice, client.owner)
        warnings += [warning] if warning else []
    if voiceless and options.loudness is not None:
        warnings.append("loudness has no effect: each speech without a voice is another voice")
    partial = services.settings.allow_partial if options.allow_partial is None else options.allow_partial
    audio = None if options.reference_audio is None else await services.references.load(options.reference_audio, hold)
    hold(len(options.voice_prompt or ""))
    return Order(
        {
            "model": family,
            "voice": voice,
            "reference_audio": audio,
            "voice_prompt": None if options.voice_prompt is None else await _bundle(options.voice_prompt),
            "deadline": services.settings.speech_seconds,
            "require_whole": not partial,
            **{name: getattr(options, name) for name in _SAME},
            "options": more,
        },
        tuple(warnings),
        voiceless,
        options.speed,
        None if voiceless else options.loudness,
    )


async def _instructions(
    services: Services, family: str, options: SpeechOptions
) -> tuple[dict[str, Any] | None, Sequence[str]]:
    """The options of the model with the instructions among them, and a warning if it follows none.

    Raises:
        InvalidArgument: a strict gateway's model follows none, or an option contradicts them.
        VoiceCloneError: the server had to be asked, and did not answer.
    """
    given = options.instructions
    if not given or not given.strip():
        return options.options, ()
    name = (await services.families.get(family)).instructions_option
    if name is None:
        others = services.families.following()
        follow = f"; {' and '.join(others)} {'follows' if len(others) == 1 else 'follow'} them" if others else ""
        ignored = f"are ignored: {family} follows none{follow}"
        if services.settings.strict:
            raise InvalidArgument(f"`instructions` {ignored}; leave them out, this gateway is strict")
        return options.options, (f"instructions {ignored}",)
    if options.options and name in options.options:
        raise InvalidArgument(f"give only one of `instructions` and the option {name}")
    return {**(options.options or {}), name: given}, ()


async def _bundle(text: str) -> bytes:
    """The bytes of a ready prompt, decoded aside: it may have megabytes."""
    try:
        return await asyncio.to_thread(base64.b64decode, text, validate=True)
    except ValueError:
        raise InvalidArgument("`voice_prompt` is no base64 of an exported voice") from None


_SAME = ("reference_text", "speaker_embedding", "x_vector_only", *Knobs.model_fields)
"""What the server is asked for as it is."""


def long_plan(services: Services, model: str | None, **more: Any) -> Plan:
    """The plan of a text that a model speaks sentence by sentence; `more` are further fields of it."""
    settings = services.settings
    own = services.families.most_characters(model)
    return Plan(
        max_characters=min(settings.sentence_characters, own or settings.sentence_characters),
        prefetch=settings.prefetch_sentences,
        parallel=settings.parallel_sentences,
        total_characters=settings.max_input_characters,
        total_sentences=MOST_SENTENCES,
        **more,
    )


def long_speech(
    services: Services, client: AsyncClient, model: str | None, held: Callable[[int], None], hold: bool, **more: Any
) -> AsyncLongSpeech:
    """The speech of a text that is not yet there.

    Args:
        client: of the caller's key.
        model: as the request names it.
        held: called with the bytes of audio that wait; see `AsyncLongSpeech`.
        hold: nothing of a sentence is sent before it is whole, so a missed end can be tried again.
        more: further fields of its plan.
    """
    settings, retried = services.settings, services.metrics.retried
    plan = long_plan(services, model, retries=settings.missed_end_retries if hold else 0, hold=hold, **more)
    return AsyncLongSpeech(client, plan, lambda family: retried.labels(family).inc(), held)


async def open_speech(
    services: Services,
    key: Key,
    request: SpeechRequest,
    held: Callable[[int], None],
    *,
    spare: Callable[[int], None] = lambda count: None,
    hold: bool,
    in_one: bool = False,
    timed: bool = False,
    headers: Mapping[str, str] | None = None,
) -> tuple[Speech, Order]:
    """Begin to speak what is asked for; a long text sentence by sentence. Returns the speech, and its order.

    Args:
        held: see `order`.
        spare: called with the bytes that wait to be aligned, as `held`.
        hold: see `long_speech`.
        in_one: a long one, too, is one speech of the server, as is one without a voice: each sentence would have a
            voice of its own.
        timed: find out when the words are spoken.
        headers: of the calls of the server.

    Raises:
        HTTPFailure, InvalidArgument: see `check_options` and `order`; also a text that is too long, or too long for
            the key. Any other error is raised with the first chunk.
    """
    settings, text = services.settings, request.input
    check_request(settings, request)
    client = services.clients.of(key)
    dictionaries, ignored = await services.dictionaries.chosen(services, client, request)
    planned = bool(dictionaries) or has_segments(request)
    found = await asyncio.to_thread(segments_of, request, dictionaries) if planned else None
    ignored = [*ignored, *(found.warnings if found else ())]
    if ignored and settings.strict:
        raise InvalidArgument(f"`text`: {ignored[0]}; leave it out, this gateway is strict")
    parts = () if found is None else found.sequence.parts
    key.characters.take(sum(len(part.span.text) for part in parts) if parts else len(text))

    def begin(ordered: Order, text: str) -> Speech:
        speech = long_speech(services, client, ordered.family, held, hold)
        speech.say(text, at_once=in_one or ordered.voiceless)
        speech.begin({**ordered.arguments, "headers": headers} if headers else ordered.arguments)
        return services.loudness.levelled(speech, client, ordered.arguments, ordered.loudness)

    if found is None:
        ordered = await order(services, client, request, held)
        if timed:
            times = client.word_times(text, request.language, keep=spare)
            ordered = replace(ordered, words=SpokenWords(times, ordered.speed))
        return begin(ordered, text), ordered
    orders = await _orders(services, client, found, held)
    warnings = dict.fromkeys([*ignored, *(warning for each in orders for warning in each.warnings)])
    ahead = iter(orders)
    ordered = replace(orders[0], warnings=tuple(warnings), speed=1.0)

    def ask(part: Part) -> Speech:
        return begin(next(ahead), part.span.text)

    if not timed:
        return AsyncParts(found.sequence, ask), ordered
    languages = {each.language for each in found.options}
    times = client.word_times(found.text, languages.pop() if len(languages) == 1 else None, keep=spare)
    spoken = AsyncParts(found.sequence, ask, times, found.begins)
    return spoken, replace(ordered, words=SpokenWords(times, fed=True))


async def _orders(
    services: Services, client: AsyncClient, segments: Segments, hold: Callable[[int], None]
) -> list[Order]:
    """The order of each segment; see `order`. Those that are spoken alike share one."""
    made, orders = dict[tuple[Any, ...], Order](), list[Order]()
    for options in segments.options:
        alike = (options.voice_name, options.style, options.language, options.instructions)
        if alike not in made:
            made[alike] = await order(services, client, options, hold)
        orders.append(made[alike])
    return orders
