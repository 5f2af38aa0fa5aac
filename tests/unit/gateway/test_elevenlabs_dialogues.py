"""ElevenLabs' WebSockets for dialogues, message by message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.doubles.speech_double import FRAME, Double
from tests.support.doubles.websocket_calls import Gateway, eventually, run
from tests.support.official.vendor_calls import VendorCaller, audio_of, calling

ONE = "/v1/text-to-dialogue/stream-input?model_id=eleven_v3&output_format=pcm_24000"
SEVERAL = "/v1/text-to-dialogue/multi-stream-input?model_id=eleven_v4&output_format=pcm_24000&sync_alignment=true"


def line(voice: str, text: str, **more: Any) -> dict[str, Any]:
    return {"voice_id": voice, "text": text, **more}


def turn_end(**place: str) -> dict[str, Any]:
    return {"is_final_audio_for_turn": True, **place}


def end(**place: str) -> dict[str, Any]:
    return {"is_final": True, **place}


def spoken(double: Double) -> list[tuple[Any, str]]:
    """Who said what."""
    return [(speech.options["voice"], text) for speech, text in zip(double.speeches, double.texts, strict=True)]


def test_one_dialogue() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, ONE) as caller:
            await caller.send(voices=["ada", "bob"], voice_settings={"stability": 0.5, "clone_strength": 0.1})
            await caller.send(keep_alive=True)
            await caller.send(inputs=[line("ada", "Good "), line("ada", "morning. ")])
            first = (await caller.until(alignment=None))[-1]
            assert first.keys() == {"audio", "alignment", "normalized_alignment"}
            await caller.send(inputs=[line("bob", "Is it? "), line("ada", "Yes. "), line("ada", "No. ", new_turn=True)])
            await caller.send(close_socket=True)
            messages, code = await caller.rest()
        assert spoken(gateway.double) == [
            ("ada", "Good morning. "),
            ("bob", "Is it? "),
            ("ada", "Yes. "),
            ("ada", "No. "),
        ]
        assert len(audio_of([first, *messages])) == (2 + 2 + 1 + 1) * FRAME * 2
        assert (messages[-1], code) == (end(), 1000) and messages.count(turn_end()) == 4

    run(test)


def test_dialogues_are_spoken_at_once() -> None:
    """As LiveKit and Pipecat do it: a context that keeps the connection, and one for each answer."""

    async def test(gateway: Gateway) -> None:
        async with calling(gateway, SEVERAL) as caller:
            await caller.send(context_id="alive", voices=["ada"])
            for context, voice in (("a", "ada"), ("b", "bob")):
                await caller.send(context_id=context, voices=[voice])
                await caller.send(context_id=context, inputs=[line(voice, f"Text of {context} ", new_turn=True)])
                await caller.send(context_id="alive", keep_alive=True)
                await caller.until(context_id=context, alignment=None)
            await caller.send(context_id="b", flush=True)
            for context in ("b", "a"):
                await caller.send(context_id=context, close_context=True)
                await caller.send(context_id=context, close_context=True)  # nothing any more
            seen = await caller.until(**end(context_id="b"))
            if end(context_id="a") not in seen:
                seen += await caller.until(**end(context_id="a"))
            assert seen.index(turn_end(context_id="a")) < seen.index(end(context_id="a"))
            await caller.send(context_id="a", voices=["bob"], inputs=[line("bob", "Again ")])  # it may come again
            await caller.send(close_socket=True)
            rest, code = await caller.rest()
        assert sorted(spoken(gateway.double)) == [("ada", "Text of a "), ("bob", "Again "), ("bob", "Text of b ")]
        assert {end(context_id="a")["context_id"], "alive"} <= {
            each["context_id"] for each in rest if "is_final" in each
        }
        assert code == 1000

    run(test)


def test_more_turns_than_may_wait() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, ONE) as caller:
            lines = [line(("ada", "bob")[number % 2], f"Turn {number} ") for number in range(9)]
            await caller.send(voices=["ada", "bob"], inputs=lines)
            await caller.send(close_socket=True)
            messages, code = await caller.rest()
        assert [text for _, text in spoken(gateway.double)] == [each["text"] for each in lines]
        assert (messages.count(turn_end()), messages[-1], code) == (9, end(), 1000)

    run(test, session_utterances=2)


def test_a_client_that_leaves_a_long_dialogue_stops_it() -> None:
    async def test(gateway: Gateway) -> None:
        gateway.double.gate = asyncio.Semaphore(1)
        async with calling(gateway, ONE) as caller:
            lines = [line(("ada", "bob")[number % 2], f"Turn {number} ") for number in range(9)]
            await caller.send(voices=["ada", "bob"], inputs=lines)
            await caller.next()
        for _ in range(20):
            gateway.double.gate.release()
        await eventually(lambda: gateway.connections() == 0)
        assert len(gateway.double.speeches) < 9

    run(test, session_utterances=2)


@pytest.mark.parametrize(
    ("messages", "word"),
    [
        ([{"inputs": [line("ada", "Word")], "context_id": "a"}], "voices"),
        ([{"voices": ["ada"], "context_id": "a"}] * 2, "voices"),
        ([{"voices": ["ada"], "context_id": "a", "inputs": [line("bob", "Word")]}], "'bob'"),
        ([{"voices": ["ada"]}], "context_id"),
        ([{"voices": [], "context_id": "a"}], "voices"),
        ([{"voices": ["ada"] * 11, "context_id": "a"}], "voices"),
        ([{"voices": ["ada"], "context_id": "a", "inputs": "Word"}], "inputs"),
        ([{"voices": ["a" * 999], "context_id": "a"}], "voices"),
        ([{"voices": ["ada"], "context_id": str(number)} for number in range(9)], "contexts are open"),
    ],
    ids=["unregistered", "twice", "stranger", "no-context", "no-voices", "many", "text", "long", "contexts"],
)
def test_messages_that_cannot_be_followed(messages: list[dict[str, Any]], word: str) -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, SEVERAL) as caller:
            for message in messages:
                await caller.send(**message)
            [error], code = await caller.rest()
            assert error["code"] == code == 1008 and word in error["message"] and error["error"]

    run(test)


def test_an_error_names_its_dialogue() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, f"{SEVERAL}&streaming_mode=sentence") as caller:
            await caller.send(context_id="a", voices=["ada"], inputs=[line("ada", "Fail. ")])
            await caller.send(context_id="a", close_context=True)
            [error], code = await caller.rest()
            assert error["context_id"] == "a" and error["code"] == code and error["message"]

    run(test)


def test_options_and_keys(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("s3cret speak\n")

    async def test(gateway: Gateway) -> None:
        async def speak(caller: VendorCaller, **first: Any) -> None:
            await caller.send(voices=["ada"], inputs=[line("ada", "Ein Wort ")], **first)
            await caller.send(close_socket=True)
            assert (await caller.rest())[1] == 1000

        header = {"xi-api-key": "s3cret"}
        async with calling(gateway, f"{ONE}&seed=7&language_code=de-AT", additional_headers=header) as caller:
            await speak(caller)
        assert {"seed": 7, "language": "de"}.items() <= gateway.double.speeches[0].options.items()
        async with calling(gateway, ONE) as caller:
            await speak(caller, xi_api_key="s3cret")
        async with calling(gateway, ONE) as caller:
            await caller.send(voices=["ada"])
            [error], _ = await caller.rest()
            assert error["error"] == "invalid_api_key"
        with pytest.raises(InvalidStatus) as refused:
            async with calling(gateway, ONE.replace("24000", "1"), additional_headers=header):
                pass
        assert "sample_rate" in json.loads(refused.value.response.body)["detail"]["message"]

    run(test, api_keys_file=str(tmp_path / "keys"))
