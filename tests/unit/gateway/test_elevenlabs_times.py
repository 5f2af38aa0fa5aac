"""When characters are spoken, in ElevenLabs' WebSockets: read as LiveKit reads them, and as Pipecat does."""

from __future__ import annotations

import asyncio
from itertools import accumulate, pairwise
from typing import Any

import pytest

from tests.support.doubles.speech_double import FRAME, RATE, Double
from tests.support.doubles.triton_double import AlignerDouble
from tests.support.doubles.websocket_calls import Gateway, run
from tests.support.official.vendor_calls import audio_of, calling

pytestmark = pytest.mark.thorough

PATH = "/v1/text-to-speech/ada/{}?output_format=pcm_24000"
ONE, SEVERAL = PATH.format("stream-input"), PATH.format("multi-stream-input")
STEP = 1000 * FRAME // RATE  # ms of a word: the double speaks a frame for each


def aligned() -> Double:
    return Double(align=AlignerDouble(FRAME))


def told(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The alignments, of which each is what it should be in itself."""
    found = [message["alignment"] for message in messages if message.get("alignment")]
    assert [message["normalizedAlignment"] for message in messages if message.get("alignment")] == found
    for each in found:
        chars, starts, lasts = each["chars"], each["charStartTimesMs"], each["charDurationsMs"]
        assert len(chars) == len(starts) == len(lasts) and all(isinstance(ms, int) for ms in [*starts, *lasts])
        assert all(start + last == other for (start, other), last in zip(pairwise(starts), lasts, strict=False))
    return found


def synchronous(alignments: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Each character and when it begins, in milliseconds of the context."""
    return [pair for each in alignments for pair in zip(each["chars"], each["charStartTimesMs"], strict=True)]


def summed(alignments: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """The same, where the times of each message begin anew."""
    ends = [each["charStartTimesMs"][-1] + each["charDurationsMs"][-1] for each in alignments]
    begins = [0, *accumulate(ends)]
    return [
        (char, begin + start)
        for begin, each in zip(begins, alignments, strict=False)
        for char, start in zip(each["chars"], each["charStartTimesMs"], strict=True)
    ]


def words_at(characters: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Words and when they begin, as both packages make them of characters: each ends with a blank."""
    found, word, begin = list[tuple[str, int]](), "", 0
    for char, start in characters:
        if char == " ":
            found += [(word, begin)] if word else []
            word = ""
        else:
            begin = begin if word else start
            word += char
    assert not word, "the last word has no blank"
    return found


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("path", [ONE, SEVERAL])
def test_words_of_a_context(path: str, sync: bool) -> None:
    several = path == SEVERAL
    place = {"context_id": "a"} if several else {}

    async def test(gateway: Gateway) -> None:
        async with calling(gateway, f"{path}&sync_alignment=true" if sync else path) as caller:
            await caller.send(text=" ", **place)
            await caller.send(text="The first ", **place)
            await caller.send(text="word. ", flush=True, **place)
            await caller.send(text="And another", **place)
            await caller.send(flush=True, **place)
            await (caller.send(close_context=True, **place) if several else caller.send(text=""))
            messages = await caller.until(isFinal=True)
        found = told(messages)
        assert len(found) > 1 and len(audio_of(messages)) == 5 * FRAME * 2
        assert {message.get("contextId") for message in messages} == ({"a"} if several else {None})
        words = words_at(synchronous(found) if sync else summed(found))
        assert words == [
            (word, pytest.approx(at * STEP, abs=1))
            for at, word in enumerate(("The", "first", "word.", "And", "another"))
        ]

    run(test, aligned())


def test_words_at_another_speed() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, f"{ONE}&sync_alignment=true") as caller:
            await caller.send(text="Good morning. ", voice_settings={"speed": 2.0})
            await caller.send(text="")
            words = words_at(synchronous(told(await caller.until(isFinal=True))))
        assert [word for word, _ in words] == ["Good", "morning."]
        assert [begin for _, begin in words] == pytest.approx([0, STEP / 2], abs=1)

    run(test, aligned())


def test_audio_waits_for_no_word() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, ONE) as caller:
            await caller.send(text="The text goes on ")
            messages = [await caller.next() for _ in range(3)]
            assert all(message["audio"] and message["alignment"] is None for message in messages)
            await caller.send(text="and ends. ")
            await caller.send(text="")
            messages += await caller.until(isFinal=True)
        assert "".join(char for each in told(messages) for char in each["chars"]) == "The text goes on and ends. "

    run(test, aligned())


def test_without_an_aligner_times_are_an_estimate() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, f"{ONE}&sync_alignment=true") as caller:
            await caller.send(text="Good morning, all. ")
            await caller.send(text="")
            messages = await caller.until(isFinal=True)
        words = words_at(synchronous(told(messages)))
        assert [word for word, _ in words] == ["Good", "morning,", "all."]
        assert [begin for _, begin in words] == sorted(begin for _, begin in words)
        assert words[0][1] >= 0 and words[-1][1] <= 3 * STEP

    run(test)


def test_marked_up_text_has_the_times_of_what_is_written() -> None:
    async def test(gateway: Gateway) -> None:
        async with calling(gateway, f"{ONE}&sync_alignment=true&enable_ssml_parsing=true") as caller:
            await caller.send(text='One two. <break time="1s"/> Three. ')
            await caller.send(text="")
            found = told(await caller.until(isFinal=True))
        characters = synchronous(found)
        assert "".join(char for char, _ in characters) == 'One two. <break time="1s"/> Three. '
        begins = {text: characters['One two. <break time="1s"/> Three. '.index(text)][1] for text in ("two", "Three")}
        assert begins == {"two": pytest.approx(STEP, abs=1), "Three": pytest.approx(2 * STEP, abs=1)}

    run(test, aligned())


def test_a_context_that_is_stopped() -> None:
    async def test(gateway: Gateway) -> None:
        gate = gateway.double.gate
        assert gate is not None
        async with calling(gateway, SEVERAL) as caller:
            await caller.send(text="It is stopped ", context_id="a")
            gate.release()
            await caller.until(contextId="a")
            await caller.send(close_context=True, context_id="a")
            await caller.until(contextId="a", isFinal=True)
            for _ in range(10):
                gate.release()
            await caller.send(text="Another one. ", flush=True, context_id="b")
            await caller.send(close_context=True, context_id="b")
            messages = await caller.until(contextId="b", isFinal=True)
        assert words_at(summed(told(messages)))[0] == ("Another", 0)

    run(test, Double(asyncio.Semaphore(0), align=AlignerDouble(FRAME)))
