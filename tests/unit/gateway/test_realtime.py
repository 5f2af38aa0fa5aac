"""OpenAI's Realtime, as far as it reads texts aloud: with its official client, and message by message."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from openai import AsyncOpenAI
from voice_clone_client.wav import pcm16

from tests.support.doubles.speech_double import FRAME, RATE, Double, samples_of
from tests.support.doubles.triton_double import AlignerDouble
from tests.support.doubles.websocket_calls import Gateway, run
from tests.support.official.vendor_calls import VendorCaller, calling

pytestmark = pytest.mark.thorough

PATH = "/v1/realtime?model=gpt-realtime"
SAID = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Good morning."}]}


async def created(caller: VendorCaller, **output: Any) -> None:
    await caller.until(type="session.created")
    await caller.send(
        type="session.update", session={"type": "realtime", "audio": {"output": {"voice": "ada", **output}}}
    )
    [updated] = await caller.until(type="session.updated")
    assert updated["session"]["audio"]["output"]["voice"] == "ada"


def test_the_official_client() -> None:
    async def test(gateway: Gateway) -> None:
        client = AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="unused")
        audio, transcript, kinds = b"", "", list[str]()
        async with client, client.realtime.connect(model="gpt-realtime") as connection:
            await connection.session.update(session={"type": "realtime", "audio": {"output": {"voice": "ada"}}})
            await connection.conversation.item.create(item=SAID)  # type: ignore[arg-type]
            await connection.response.create()
            async for event in connection:
                kinds.append(event.type)
                if event.type == "response.output_audio.delta":
                    audio += base64.b64decode(event.delta)
                elif event.type == "response.output_audio_transcript.done":
                    transcript = event.transcript
                elif event.type == "response.done":
                    assert event.response.status == "completed" and event.response.usage is not None
                    break
        assert transcript == "Good morning." and gateway.double.texts == ["Good morning."]
        speech = gateway.double.speeches[0]
        assert speech.options["voice"] == "ada"
        assert audio == pcm16(samples_of("Good morning.", speech.options["seed"]))
        order = [kind for kind in kinds if kind not in ("response.output_audio.delta",)]
        assert order == [
            *("session.created", "session.updated", "conversation.item.added", "response.created"),
            *("response.output_item.added", "response.content_part.added", "response.output_audio_transcript.delta"),
            *("response.output_audio.done", "response.output_audio_transcript.done", "response.content_part.done"),
            *("response.output_item.done", "response.done"),
        ]

    run(test)


def test_a_response_has_its_own_input_voice_and_format() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH) as caller:
            await created(caller)
            output = {"voice": {"id": "eve"}, "format": {"type": "audio/pcmu"}}
            await caller.send(type="response.create", response={"input": [SAID, SAID], "audio": {"output": output}})
            messages = await caller.until(type="response.done")
        assert gateway.double.speeches[0].options["voice"] == "eve"
        said = "".join(each["delta"] for each in messages if each["type"] == "response.output_audio_transcript.delta")
        assert said.split() == ["Good", "morning.", "Good", "morning."]
        audio = [base64.b64decode(each["delta"]) for each in messages if each["type"] == "response.output_audio.delta"]
        assert sum(map(len, audio)) % (FRAME // 3) == 0 and audio

    run(test)


def test_cancelled() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH) as caller:
            await created(caller)
            await caller.send(type="response.create", response={"input": [SAID]})
            await caller.until(type="response.output_audio.delta")
            await caller.send(type="response.cancel")
            done = (await caller.until(type="response.done"))[-1]["response"]
            assert done["status"] in ("cancelled", "completed")
            await caller.send(type="response.create", response={"input": [SAID]})
            assert (await caller.until(type="response.done"))[-1]["response"]["status"] == "completed"

    run(test)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "no model here listens"),
        ({"type": "response.create"}, "nothing to read"),
        ({"type": "session.update", "session": {"audio": {"output": {"format": {"type": "audio/mp3"}}}}}, "audio/pcm"),
        ({"type": "session.update", "session": {"audio": {"output": {"speed": 99}}}}, "speed"),
        ({"type": "session.update", "session": {"audio": 3}}, "session"),
        ({"type": 3}, "type"),
        ({}, "type"),
        ([], "JSON object"),
        ({"type": "conversation.item.create", "item": {"content": [{"text": "x" * 60}]}}, "more than 50 characters"),
    ],
)
def test_an_error_leaves_the_connection_open(message: Any, words: str) -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH) as caller:
            await created(caller)
            await caller.connection.send(json.dumps(message))
            [error] = await caller.until(type="error")
            assert words in error["error"]["message"]
            await caller.send(type="response.create", response={"input": [SAID]})
            assert (await caller.until(type="response.done"))[-1]["response"]["status"] == "completed"

    run(test, max_input_characters=50)


def test_a_speech_that_fails() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH) as caller:
            await created(caller)
            content = [{"type": "input_text", "text": "Fail."}]
            await caller.send(type="response.create", response={"input": [{"type": "message", "content": content}]})
            messages = await caller.until(type="response.done")
            assert messages[-1]["response"]["status"] == "failed"
            assert messages[-1]["response"]["status_details"]["error"]["code"] == "overloaded"

    run(test)


@pytest.mark.parametrize("field", [{"output_audio_timestamp_types": ["word"]}, {}])
def test_when_words_are_spoken_and_what_was_heard(field: dict[str, Any]) -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH) as caller:
            await caller.until(type="session.created")
            output = {"voice": "ada", "speed": 2.0}
            await caller.send(type="session.update", session={"audio": {"output": output}, **field})
            await caller.send(type="conversation.item.create", item=SAID)
            await caller.send(type="response.create")
            messages = await caller.until(type="response.done")
            told = [each for each in messages if each["type"] == "response.audio_timestamp.delta"]
            step = 1000 * FRAME // RATE // 2
            assert [(each["text"], each["audio_offset_ms"], each["audio_duration_ms"]) for each in told] == [
                (word, at * step, step) for at, word in enumerate(("Good", "morning.")[: 2 * len(field)])
            ]
            item = messages[-1]["response"]["output"][0]
            assert {each["item_id"] for each in told} <= {item["id"]}
            heard = {"type": "conversation.item.truncate", "item_id": item["id"], "content_index": 0}
            await caller.send(**heard, audio_end_ms=step)
            [truncated] = await caller.until(type="conversation.item.truncated")
            assert (truncated["item_id"], truncated["audio_end_ms"]) == (item["id"], step)
            assert not field or truncated["item"]["content"][0]["transcript"] == "Good"
            for wrong in (
                {"item_id": "another", "audio_end_ms": 1},
                *({"audio_end_ms": at} for at in (-1, 10**400, None)),
            ):
                await caller.send(**{**heard, **wrong})
                [*_, refused] = await caller.until(type="error")
                assert refused["error"]["type"] == "invalid_request_error"

    run(test, Double(align=AlignerDouble(FRAME)))


def test_a_truncation_while_the_response_runs() -> None:
    """It says what was heard; the transcript of the response stays that of all that is spoken."""

    async def test(gateway: Gateway) -> None:
        async with calling(gateway, PATH) as caller:
            await caller.until(type="session.created")
            asked = {"audio": {"output": {"voice": "ada"}}, "output_audio_timestamp_types": ["word"]}
            await caller.send(type="session.update", session=asked)
            await caller.send(type="conversation.item.create", item=SAID)
            gate = gateway.double.gate = asyncio.Semaphore(1)
            await caller.send(type="response.create")
            item = (await caller.until(type="response.output_item.added"))[-1]["item"]["id"]
            heard = {"type": "conversation.item.truncate", "item_id": item, "content_index": 0}
            await caller.send(**heard, audio_end_ms=0)
            [*_, truncated] = await caller.until(type="conversation.item.truncated")
            for _ in range(9):
                gate.release()
            messages = await caller.until(type="response.done")
            [whole] = [each for each in messages if each["type"] == "response.output_audio_transcript.done"]
            assert truncated["item"]["content"][0]["transcript"] == "" and "morning" in whole["transcript"]

    run(test, Double(align=AlignerDouble(FRAME)))


def test_keys_of_browsers(tmp_path: Any) -> None:
    (tmp_path / "keys").write_text("s3cret speak\n")

    async def test(gateway: Gateway) -> None:
        protocols = ["realtime", "openai-insecure-api-key.s3cret"]
        async with calling(gateway, PATH, subprotocols=protocols) as caller:
            assert caller.connection.subprotocol == "realtime"
            await caller.until(type="session.created")

    run(test, api_keys_file=str(tmp_path / "keys"))
