"""The same texts from clients of vendors: pauses, SSML and numbers while they are written, by the official clients."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from cartesia import AsyncCartesia
from deepgram.core.events import EventType
from deepgram.speak.v1.types import SpeakV1Text
from elevenlabs.client import ElevenLabs
from openai import AsyncOpenAI

from tests.support.doubles.gateway_thread import Shared
from tests.support.doubles.speech_double import FRAME, RATE
from tests.support.doubles.websocket_calls import Gateway, run
from tests.support.official.vendor_calls import calling
from tests.unit.gateway.test_deepgram import client_of

pytestmark = pytest.mark.thorough

TEXT = 'One two.<break time="0.5s" /> It is $5.'
SPOKEN = ("One two.", "It is five dollars.")
SILENCE = bytes(2 * RATE // 2)  # half a second of 16-bit samples


def texts_of(gateway: Gateway) -> list[str]:
    return [" ".join(text.split()) for text in gateway.double.texts]


@pytest.mark.parametrize("path", ["stream-input", "multi-stream-input"])
def test_elevenlabs(path: str) -> None:
    query = "output_format=pcm_24000&enable_ssml_parsing=true&apply_text_normalization=on&language_code=en"

    async def test(gateway: Gateway) -> None:
        async with calling(gateway, f"/v1/text-to-speech/ada/{path}?{query}") as caller:
            await caller.send(text=" ")
            for character in TEXT:
                await caller.send(text=character)
            await caller.send(text=" ", flush=True)
            if path == "stream-input":
                await caller.send(text="")
            else:
                await caller.send(close_context=True)
            messages = await caller.until(isFinal=True)
        assert texts_of(gateway) == [*SPOKEN]
        audio = b"".join(base64.b64decode(each["audio"]) for each in messages if each.get("audio"))
        assert SILENCE in audio

    run(test)


def test_elevenlabs_speaks_tags_where_they_are_not_asked_for() -> None:
    async def test(gateway: Gateway) -> None:
        query = "output_format=pcm_24000"
        async with calling(gateway, f"/v1/text-to-speech/ada/stream-input?{query}") as caller:
            await caller.send(text="<speak>One</speak> ")
            await caller.send(text="")
            await caller.until(isFinal=True)
        assert texts_of(gateway) == ["<speak>One</speak>"]

    run(test)


def test_elevenlabs_over_http(shared: Shared) -> None:
    triton, http = shared
    triton.calls.clear()
    with httpx.Client() as plain:
        client = ElevenLabs(base_url=str(http.base_url), api_key="unused", httpx_client=plain)
        spoken = client.text_to_speech.convert(
            "ada", text="It is $5.", language_code="en", apply_text_normalization="on", output_format="pcm_24000"
        )
        assert b"".join(spoken)
    assert [inputs["text"].decode() for _, inputs in triton.speeches] == ["It is five dollars."]


@pytest.mark.filterwarnings("ignore:websockets.*deprecated:DeprecationWarning")
def test_deepgram() -> None:
    options = {"model": "ada", "encoding": "linear16", "sample_rate": 24000}
    more = {"input_type": "ssml", "normalize": "on", "language": "en"}
    rules = json.dumps([{"string_to_replace": "SQL", "alias": "sequel"}])

    def speak(gateway: Gateway) -> list[Any]:
        heard: list[Any] = []
        asked = {"additional_query_parameters": {**more, "pronunciations": rules}}
        with client_of(gateway).speak.v1.connect(**options, request_options=asked) as connection:  # type: ignore[arg-type]
            connection.on(EventType.MESSAGE, heard.append)
            for character in "<speak>SQL is $5.<break time='500ms'/>Good.</speak>":
                connection.send_text(SpeakV1Text(text=character))
            connection.send_flush()
            connection.send_close()
            connection.start_listening()
        return heard

    async def test(gateway: Gateway) -> None:
        heard = await asyncio.to_thread(speak, gateway)
        assert texts_of(gateway) == ["sequel is five dollars.", "Good."]
        audio = b"".join(each for each in heard if isinstance(each, bytes))
        assert len(audio) >= 2 * (RATE // 2 + FRAME)

    run(test)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_cartesia() -> None:
    form: Any = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}

    async def test(gateway: Gateway) -> None:
        url = f"127.0.0.1:{gateway.port}"
        client = AsyncCartesia(api_key="unused", base_url=f"http://{url}", websocket_base_url=f"ws://{url}")
        async with client, client.tts.websocket_connect() as connection:
            speech = connection.context(
                model_id="sonic-3",
                voice={"mode": "id", "id": "ada"},
                output_format=form,
            )
            for character in TEXT:
                await speech.push(character)
            await speech.no_more_inputs()
            audio = b"".join([chunk.audio async for chunk in speech.receive() if chunk.type == "chunk"])
        assert texts_of(gateway) == ["One two.", "It is $5."]
        assert SILENCE in audio

    run(test)


def test_cartesia_reads_numbers_of_a_locale() -> None:
    async def test(gateway: Gateway) -> None:
        form = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
        message = {"model_id": "sonic-3", "voice": "ada", "output_format": form, "normalization": "en-US"}
        async with calling(gateway, "/tts/websocket") as caller:
            for character in TEXT:
                await caller.send(**message, context_id="a", transcript=character, **{"continue": True})
            await caller.send(**message, context_id="a", transcript="")
            await caller.until(type="done")
        assert texts_of(gateway) == [*SPOKEN]

    run(test)


def test_realtime() -> None:
    said: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "It is $5."}]}

    async def test(gateway: Gateway) -> None:
        client = AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="unused")
        async with client, client.realtime.connect(model="gpt-realtime") as connection:
            output: Any = {"voice": "ada", "normalize": "on", "language": "en"}
            await connection.session.update(session={"type": "realtime", "audio": {"output": output}})
            await connection.conversation.item.create(item=said)
            await connection.response.create()
            transcript = await transcript_of(connection)
        assert transcript == "It is five dollars." and texts_of(gateway) == ["It is five dollars."]

    async def transcript_of(events: AsyncIterator[Any]) -> str:
        heard = ""
        async for event in events:
            if event.type == "response.output_audio_transcript.delta":
                heard += event.delta
            elif event.type == "response.done":
                break
        return heard

    run(test)
