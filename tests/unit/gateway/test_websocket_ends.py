"""How speech on the WebSocket ends early: cancelled, failed, closed, left by its client."""

from __future__ import annotations

import asyncio

import pytest
from websockets.exceptions import ConnectionClosedOK

from tests.support.doubles.speech_double import FRAME, Double
from tests.support.doubles.websocket_calls import Gateway, audio_of, events_of, eventually, pcm_of, run


def test_cancel_at_any_moment() -> None:
    gate = asyncio.Semaphore(5)

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="Three words here. Some more words. And so on. ")
            await caller.until("audio.done")
            got = [await caller.next() for _ in range(3)]
            assert audio_of(got) == pcm_of("Some more words.", 1)[: 2 * 2 * FRAME]
            await caller.send("cancel")
            assert await caller.next() == {
                "type": "session.cancelled",
                "utterance_index": 0,
                "sentences": 1,
                "characters": 17,
                "milliseconds": 400,
                "partial": {"sentence_text": "Some more words.", "start": 18, "end": 34, "milliseconds": 160},
            }
            assert all(one.closed.is_set() for one in gateway.double.speeches)
            gate.release()
            await caller.send("cancel")
            nothing = await caller.next()  # and no audio before it
            assert (nothing["type"], nothing["utterance_index"]) == ("session.cancelled", None)
            for _ in range(20):
                gate.release()
            await caller.send("input.text", text="Something else.")
            await caller.send("input.done")
            after = await caller.until("session.done")
            assert after[-1]["utterance_index"] == 1
            assert audio_of(after) == pcm_of("Something else.", 0)

    run(test, Double(gate))


def test_cancel_reports_what_was_heard() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(speed=2.0)
            await caller.send("input.text", text="Three words here. Some more words. And so on")
            await caller.until("audio.done")
            await caller.until("audio.done")
            await caller.send("cancel", played_ms=150)
            report = await caller.next()
            assert (report["sentences"], report["characters"], report["milliseconds"]) == (1, 17, 150)
            assert report["partial"]["milliseconds"] == 30

    run(test)


def test_cancel_before_anything_and_with_more_waiting() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            for text in ("One first utterance. ", "Another one."):
                await caller.send("input.text", text=text)
                await caller.send("input.done")
            await caller.send("input.text", text="Still being")
            await caller.send("cancel")
            reports = [await caller.next() for _ in range(3)]
            assert [report["utterance_index"] for report in reports] == [0, 1, 2]
            assert {report["milliseconds"] for report in reports} == {0}
            await caller.send("input.done")
            assert (await caller.next())["type"] == "session.done", "an utterance without text"
        assert len(gateway.double.speeches) <= 1

    run(test, Double(asyncio.Semaphore(0)))


def test_a_failing_sentence_ends_its_utterance_only() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="The first one here. Fail at this point. The third ")
            messages = await caller.until("error")
            assert audio_of(messages) == pcm_of("The first one here.", 0)
            error = messages[-1]
            assert (error["error"]["code"], error["utterance_index"], error["partial_audio"]) == ("overloaded", 0, True)
            await caller.send("input.text", text="and the rest of it. ")
            await caller.send("input.done")
            done = await caller.next()
            assert (done["type"], done["failed"], done["total_sentences"]) == ("session.done", True, 1)
            await caller.send("input.text", text="It goes on.")
            await caller.send("input.done")
            after = await caller.until("session.done")
            assert audio_of(after) == pcm_of("It goes on.", 0)
            await caller.send("input.text", text="... !")
            await caller.send("input.done")
            mute = events_of(await caller.until("session.done"))
            assert "letter" in mute[0]["error"]["message"] and mute[1]["failed"]

    run(test)


@pytest.mark.parametrize("abrupt", [False, True])
def test_a_client_that_leaves_stops_everything(abrupt: bool) -> None:
    gate = asyncio.Semaphore(2)

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="A sentence of many words. And another one. ")
            await caller.next()
            await caller.next()
            if abrupt:
                caller.connection.transport.abort()
        await eventually(lambda: all(one.closed.is_set() for one in gateway.double.speeches))

    run(test, Double(gate))


def test_close() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="A sentence. And")
            await caller.until("audio.start")
            await caller.send("session.close")
            with pytest.raises(ConnectionClosedOK):
                while True:
                    await caller.next()

    run(test)
