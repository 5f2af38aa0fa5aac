"""A text that is spoken while it is written, in one piece or in parts; in a session, and by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from voice_clone_client import Chunk, InvalidArgument
from voice_clone_client.long_text.plan import Plan, sentence_seed
from voice_clone_gateway.speech.streaming_text import StreamingText

from tests.support.doubles.speech_double import Double
from tests.support.doubles.websocket_calls import Gateway, events_of, run

OPTIONS = {"voice": "ada", "seed": 7}


async def chunks_of(speech: StreamingText) -> list[Any]:
    return [chunk async for chunk in speech]


def test_one_piece() -> None:
    async def test() -> None:
        double = Double()
        speech = StreamingText(double, Plan())
        speech.begin(OPTIONS)
        for piece in ("  The fi", "rst sentence. Now ", "the sec\ud83d", "\ude00nd", ""):
            speech.write(piece)
        speech.end()
        chunks = await chunks_of(speech)
        assert double.texts == ["The first sentence. Now the sec\U0001f600nd"]
        assert {chunk.sentence_index for chunk in chunks} == {0}
        assert (chunks[-1].sentence.start, chunks[-1].sentence.end) == (2, 36)
        report = speech.report()
        assert (report.sentences, report.characters, report.partial) == (1, 36, None)
        assert speech.info is not None and speech.info["finish_reason"] == "stop"
        speech.close()

    asyncio.run(test())


def test_it_is_spoken_while_it_is_written() -> None:
    async def test() -> None:
        speech = StreamingText(Double(), Plan())
        speech.begin(OPTIONS)
        speech.write("The first ")
        first = await anext(speech)
        assert isinstance(first, Chunk) and not first.final and first.sentence.text == "The first "
        await anext(speech)
        partial = speech.report(0.08).partial
        assert partial is not None and (partial.text, partial.end) == ("The", 3)
        speech.end("word.")
        assert (await chunks_of(speech))[-1].final
        speech.close()

    asyncio.run(test())


def test_parts() -> None:
    async def test() -> None:
        double = Double()
        speech = StreamingText(double, Plan())
        speech.begin(OPTIONS)
        speech.write("The first. ")
        speech.flush()
        speech.flush()
        speech.write(" Another")
        speech.end(" one.")
        places = {chunk.sentence_index: chunk.sentence for chunk in await chunks_of(speech)}
        assert double.texts == ["The first. ", "Another one."]
        assert [(place.start, place.end) for place in places.values()] == [(0, 11), (12, 24)]
        speech.close()

    asyncio.run(test())


@pytest.mark.parametrize("end", [".", "\r", "\u2028", "\u0085"])
def test_a_pause_at_the_end_of_a_sentence_or_line_ends_a_part(end: str) -> None:
    async def test() -> None:
        double = Double()
        speech = StreamingText(double, Plan(), flush_after=0.02)
        speech.begin(OPTIONS)
        speech.write("The fi")
        await asyncio.sleep(0.05)
        speech.write("rst" + end)
        await asyncio.sleep(0.05)
        speech.end("Another.")
        await chunks_of(speech)
        assert double.texts == ["The first" + end, "Another."]
        speech.close()

    asyncio.run(test())


@pytest.mark.parametrize("renew_after", [None, 20.0])
def test_a_long_text_has_parts(renew_after: float | None) -> None:
    """Each ends with a sentence, behind a third of what the model speaks well, or of what takes so long."""

    async def test() -> None:
        double = Double(part_characters=300)
        speech = StreamingText(double, Plan(), renew_after=renew_after)
        speech.begin(OPTIONS)
        sentences = [f"This is the sentence number {number} of this text." for number in range(9)]
        speech.end(" ".join(sentences))
        places = {chunk.sentence_index: chunk.sentence for chunk in await chunks_of(speech)}
        size = 2 if renew_after else 3
        assert double.texts == [" ".join(sentences[begin : begin + size]) for begin in range(0, 9, size)]
        assert [place.text for place in places.values()] == double.texts
        seeds = [sentence_seed(7, index) for index in range(len(double.texts))]
        assert [each.options["seed"] for each in double.speeches] == seeds
        assert speech.info is not None and speech.info["parts"] == len(double.texts)
        speech.close()

    asyncio.run(test())


def test_nothing_is_begun_before_it_is_wanted() -> None:
    async def test() -> None:
        double = Double(part_characters=180)
        speech = StreamingText(double, Plan())
        speech.begin(OPTIONS)
        speech.end("This is a sentence of fifty characters, or of more. " * 8)
        await anext(speech)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(double.texts) == 1
        speech.close()

    asyncio.run(test())


@pytest.mark.parametrize(("text", "words"), [("...", "nothing to speak"), ("a" * 200, "too long")])
def test_what_cannot_be_spoken(text: str, words: str) -> None:
    async def test() -> None:
        speech = StreamingText(Double(), Plan(total_characters=100))
        speech.begin(OPTIONS)
        with pytest.raises(InvalidArgument, match=words):
            speech.end(text)
            await chunks_of(speech)
        speech.close()

    asyncio.run(test())


def test_a_session() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(streaming_mode="token_level")
            await caller.send("input.text", text="The fir")
            await caller.send("input.text", text="st word ")
            start = (await caller.until("audio.start"))[-1]
            assert (start["sentence_index"], start["start"]) == (0, 0)
            await caller.send("input.flush")
            await caller.until("audio.done")
            await caller.send("input.text", text="and another.")
            await caller.send("input.done")
            done = events_of(await caller.until("session.done"))[-1]
            assert (done["total_sentences"], done["characters"], done["finish_reason"]) == (2, 27, "stop")
            assert gateway.double.texts == ["The first word ", "and another."]
            assert gateway.double.speeches[0].options["voice"] == "ada"

    run(test)


@pytest.mark.parametrize("always", [False, True])
def test_a_session_whose_model_leaves_text(always: bool) -> None:
    """The next piece goes on with the first unread sentence; an utterance that does not get further fails."""
    text = "The first sentence. The second has a last word."
    double = Double(misses=lambda written: always or written == text)

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(streaming_mode="token_level", seed=3)
            await caller.send("input.text", text=text)
            await caller.send("input.done")
            events = events_of(await caller.until("session.done"))
            starts = [event for event in events if event["type"] == "audio.start"]
            assert [event["start"] for event in starts[:2]] == [0, 20]
            reasons = [event["finish_reason"] for event in events if event["type"] == "audio.done"]
            done = events[-1]
            if always:
                [error] = [event["error"] for event in events if event["type"] == "error"]
                assert error["code"] == "incomplete" and "character 41 " in error["message"]
                assert (done["failed"], done["finish_reason"], done["characters"]) == (True, "text_left", 41)
            else:
                assert reasons == ["text_left", "stop"]
                assert (done["finish_reason"], done["characters"]) == ("stop", len(text))

    run(test, double)


def test_a_session_is_interrupted() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(streaming_mode="token_level")
            await caller.send("input.text", text="The first word ")
            await caller.until("audio.start")
            await caller.next()
            await caller.send("cancel")
            reported = (await caller.until("session.cancelled"))[-1]
            assert reported["partial"]["sentence_text"].startswith("The")
            assert reported["partial"]["end"] <= len("The first word ")

    run(test)


def test_flush_between_sentences() -> None:
    """Without token_level, it completes the sentence."""

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="No end")
            await caller.send("input.flush")
            await caller.until("audio.done")
            await caller.send("input.text", text=" yet.")
            await caller.send("input.done")
            await caller.until("session.done")
            assert gateway.double.texts == ["No end", "yet."]

    run(test)


@pytest.mark.parametrize(
    "fields",
    [{"streaming_mode": "token_level", "stream_audio": False}, {"flush_after_ms": 100}, {"renew_after_ms": 1000}],
)
def test_what_does_not_go_together(fields: dict[str, Any]) -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(**fields)
            error = (await caller.until("error"))[-1]["error"]
            assert "token_level" in error["message"]

    run(test)
