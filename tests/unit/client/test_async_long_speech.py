"""A text as one speech, sentence after sentence, with a client that makes known samples."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest
from voice_clone_client import Cancelled, InvalidArgument, Overloaded
from voice_clone_client.long_text.long_speech import AsyncLongSpeech
from voice_clone_client.long_text.plan import Plan, sentence_seed
from voice_clone_client.long_text.text import SentenceChunk

from tests.support.doubles.speech_double import RATE, Double, samples_of

TEXT = "The first one. The second sentence. And a third.\n\nAn end."
SENTENCES = ["The first one.", "The second sentence.", "And a third.", "An end."]
CUT = Plan()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def whole(chunks: list[SentenceChunk]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.concatenate([chunk.samples for chunk in chunks])


def started(double: Double, plan: Plan, text: str, **options: Any) -> AsyncLongSpeech:
    speech = AsyncLongSpeech(double, plan)
    speech.end(text)
    speech.begin(options)
    return speech


@pytest.mark.parametrize("parallel", [1, 3])
def test_the_sentences_follow_each_other_without_a_gap(parallel: int) -> None:
    async def test() -> None:
        double = Double()
        speech = started(double, Plan(parallel=parallel), TEXT, seed=7, voice="ada")
        chunks = [chunk async for chunk in speech]
        seeds = [sentence_seed(7, index) for index in range(4)]
        assert double.texts == SENTENCES
        assert [one.options for one in double.speeches] == [{"seed": seed, "voice": "ada"} for seed in seeds]
        expected = [samples_of(text, seed) for text, seed in zip(SENTENCES, seeds, strict=True)]
        np.testing.assert_array_equal(whole(chunks), np.concatenate(expected))
        assert [chunk.index for chunk in chunks] == list(range(11))
        assert [chunk.sentence.text for chunk in chunks if chunk.first] == SENTENCES
        assert [chunk.sentence_index for chunk in chunks if chunk.last] == [0, 1, 2, 3]
        assert [chunk.seed for chunk in chunks if chunk.first] == seeds
        assert all(TEXT[chunk.sentence.start : chunk.sentence.end] == chunk.sentence.text for chunk in chunks)
        assert speech.info == {"frames": 11, "text_tokens": 11, "mode": "icl", "sentences": 4, "finish_reason": "stop"}
        assert all(one.closed.is_set() for one in double.speeches)

    run(test())


def test_seeds() -> None:
    assert sentence_seed(None, 3) is None
    assert sentence_seed(5, 0) == 5, "a single sentence is an ordinary speech"
    seeds = {sentence_seed(seed, index) for seed in (0, 1, 2**64 - 1) for index in range(100)}
    assert len(seeds) == 300
    assert all(seed is not None and 0 <= seed < 2**64 for seed in seeds)
    assert sentence_seed(1, 1) == 3836683324925129187  # part of the interface: recorded speeches can be made again


def test_audio_comes_while_the_text_is_still_written() -> None:
    async def test() -> None:
        speech = AsyncLongSpeech(Double(), CUT)
        speech.write("The first one. The se")
        speech.begin({"seed": 1})
        first = [await anext(speech) for _ in range(3)]
        assert first[-1].last and first[-1].sentence.text == "The first one."
        waiting = asyncio.ensure_future(anext(speech))
        await settle()
        assert not waiting.done()
        speech.write("cond sentence. A")
        assert (await waiting).sentence.text == "The second sentence."
        speech.end()
        rest = [chunk async for chunk in speech]
        assert [chunk.sentence.text for chunk in rest if chunk.first] == ["A"]
        with pytest.raises(InvalidArgument, match="was ended"):
            speech.write("more")

    run(test())


def test_the_next_sentences_are_made_while_one_is_taken_and_no_more() -> None:
    async def test() -> None:
        double = Double()
        text = " ".join(f"Sentence number {index}." for index in range(50, 80))
        speech = started(double, Plan(prefetch=2), text)
        await settle()
        assert len(double.speeches) == 3, "the first one and two ahead, though no chunk is taken"
        assert double.most_live == 1
        while not (await anext(speech)).last:
            pass
        await settle()
        assert len(double.speeches) == 4
        assert len([chunk async for chunk in speech]) == 29 * 3
        assert len(double.speeches) == 30

    run(test())


@pytest.mark.parametrize(("prefetch", "parallel", "at_once"), [(0, 4, 1), (3, 1, 1), (3, 2, 2), (3, 9, 4)])
def test_how_many_are_made_at_once(prefetch: int, parallel: int, at_once: int) -> None:
    async def test() -> None:
        double = Double(asyncio.Semaphore(0))
        plan = Plan(prefetch=prefetch, parallel=parallel)
        speech = started(double, plan, " ".join(["One sentence."] * 8))
        await settle()
        assert double.most_live == at_once
        speech.close()
        await settle()

    run(test())


@pytest.mark.parametrize("parallel", [1, 3])
def test_nothing_is_begun_while_much_waits_to_be_read(parallel: int) -> None:
    async def test() -> None:
        double = Double(frame=4 * RATE)
        plan = Plan(prefetch=5, parallel=parallel)
        speech = started(double, plan, " ".join(["Three words each."] * 8))
        await settle()
        assert len(double.speeches) == parallel, "12 s of each wait to be read"
        for _ in range(3 * (parallel - 1) + 1):
            await anext(speech)
        await settle()
        assert len(double.speeches) > parallel, "8 s wait"
        assert len([chunk async for chunk in speech]) == 24 - 3 * (parallel - 1) - 1
        assert len(double.speeches) == 8

    run(test())


def test_an_error_comes_after_the_audio_before_it_and_ends_the_speech() -> None:
    async def test() -> None:
        double = Double()
        speech = started(double, CUT, "The first one. Fail here. The third. The fourth. The fifth.")
        got = [await anext(speech) for _ in range(3)]
        assert got[-1].last
        with pytest.raises(Overloaded, match="the queue is full"):
            await anext(speech)
        await settle()
        assert all(one.closed.is_set() for one in double.speeches)
        assert "The fifth." not in double.texts
        with pytest.raises(Cancelled):
            await anext(speech)
        report = speech.report()
        assert (report.sentences, report.characters, report.partial) == (1, 14, None)

    run(test())


def test_closing_stops_everything() -> None:
    async def test() -> None:
        double = Double(asyncio.Semaphore(4))
        before = asyncio.all_tasks()
        speech = started(double, Plan(prefetch=3, parallel=2), TEXT)
        taken = [await anext(speech) for _ in range(2)]
        assert not taken[-1].last
        waiting = asyncio.ensure_future(anext(speech))
        await settle()
        speech.close()
        speech.close()
        assert all(one.closed.is_set() for one in double.speeches)
        for late in (waiting, anext(speech)):
            with pytest.raises(Cancelled):
                await late
        count = len(double.speeches)
        await settle()
        assert len(double.speeches) == count
        assert asyncio.all_tasks() == before, "no task is left"

    run(test())


def test_a_cancelled_reader_stops_everything() -> None:
    async def test() -> None:
        double = Double(asyncio.Semaphore(0))
        before = asyncio.all_tasks()
        speech = started(double, CUT, TEXT)
        waiting = asyncio.ensure_future(anext(speech))
        await settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await settle()
        assert [one.closed.is_set() for one in double.speeches] == [True]
        assert asyncio.all_tasks() == before

    run(test())


def test_nothing_is_made_before_it_begins() -> None:
    async def test() -> None:
        double = Double()
        speech = AsyncLongSpeech(double, CUT)
        speech.end(TEXT)
        await settle()
        assert double.speeches == []
        speech.close()
        with pytest.raises(Cancelled):
            await anext(speech)

    run(test())


def test_pauses() -> None:
    async def test() -> None:
        plan = Plan(sentence_pause=0.1, paragraph_pause=0.25)
        chunks = [chunk async for chunk in started(Double(), plan, TEXT, seed=1)]
        parts = [samples_of(text, sentence_seed(1, index)) for index, text in enumerate(SENTENCES)]
        short, long = np.zeros(2400, np.float32), np.zeros(6000, np.float32)
        expected = [parts[0], short, parts[1], short, parts[2], long, parts[3]]
        np.testing.assert_array_equal(whole(chunks), np.concatenate(expected))

    run(test())


def test_the_report_states_its_progress() -> None:
    async def test() -> None:
        speech = started(Double(), CUT, TEXT)
        nothing = speech.report()
        assert (nothing.sentences, nothing.characters, nothing.seconds, nothing.partial) == (0, 0, 0.0, None)
        for _ in range(4):
            await anext(speech)
        report = speech.report()
        assert (report.sentences, report.characters, report.seconds) == (1, 14, pytest.approx(0.32))
        assert report.partial is not None and report.partial.text == "The second sentence."
        assert report.partial_seconds == pytest.approx(0.08)
        heard = speech.report(0.1)
        assert (heard.sentences, heard.characters, heard.seconds) == (0, 0, pytest.approx(0.1))
        assert heard.partial is not None and heard.partial.text == "The first one."
        assert speech.report(0.24).sentences == 1
        async for _ in speech:
            pass
        end = speech.report()
        assert (end.sentences, end.characters, end.seconds) == (4, len(TEXT), pytest.approx(0.88))
        assert speech.report(99.0) == end

    run(test())


def test_limits() -> None:
    async def test() -> None:
        speech = AsyncLongSpeech(Double(), Plan(total_characters=20, total_sentences=2))
        speech.write("One here. ")
        with pytest.raises(InvalidArgument, match="at most 20 characters"):
            speech.write("x" * 11)
        with pytest.raises(InvalidArgument, match="at most 2 sentences"):
            speech.end("Two. Three")
        speech.begin({})
        assert [chunk.sentence.text async for chunk in speech if chunk.first] == ["One here.", "Two."]

    run(test())


@pytest.mark.parametrize("plan", [Plan(prefetch=-1), Plan(parallel=0)])
def test_a_plan_that_makes_no_sense(plan: Plan) -> None:
    with pytest.raises(InvalidArgument, match="prefetch >= 0"):
        AsyncLongSpeech(Double(), plan)


def test_texts_with_nothing_to_say() -> None:
    async def test() -> None:
        double = Double()
        assert [chunk async for chunk in started(double, CUT, " \n ")] == []
        with pytest.raises(InvalidArgument, match="at least one letter"):
            await anext(started(double, CUT, "... !"))
        chunks = [chunk async for chunk in started(double, CUT, "One. ---\n\n***")]
        assert [chunk.sentence.text for chunk in chunks if chunk.first] == double.texts == ["One. ---"]

    run(test())
