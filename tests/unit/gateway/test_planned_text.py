"""Texts with pauses, SSML, pronunciations and numbers that are spoken while they are written: in pieces as at once."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from voice_clone_client import Cancelled
from voice_clone_client.long_text.long_speech import AsyncLongSpeech
from voice_clone_client.long_text.plan import Plan
from voice_clone_client.wav import pcm16
from voice_clone_gateway.http.limits import Characters
from voice_clone_gateway.speech.planned_text import PlannedText, Written
from voice_clone_gateway.speech.streaming_text import StreamingText
from voice_clone_text.dictionary import Dictionary, Rule, Scoped
from voice_clone_text.pieces import Style
from voice_clone_text.planner import Settings

from tests.support.doubles.speech_double import RATE, Double, samples_of
from tests.support.doubles.websocket_calls import Gateway, audio_of, events_of, run

RULES = Dictionary([Rule("SQL", "sequel"), Rule("New York", "NY"), Rule("New York City", "the city")])
TEXTS = {
    "plain": (Settings(), "Nothing is asked here. So nothing changes, <b> neither."),
    "ssml": (
        Settings(),
        "<speak>Good morning.<break time='300ms'/> Then <sub alias='World Wide Web'>WWW</sub> and "
        "<voice name='bob'>I am Bob.<break/></voice><prosody rate='2' volume='-6dB'>It is &amp; was. </prosody>"
        "<mark name='here'/><say-as interpret-as='characters'>abc</say-as>!<break time='1s'/></speak>",
    ),
    "pauses": (Settings(inline_pauses=True, tag_pauses=True), 'One [pause:250ms] two. <break time="1s"/>Three [pau!'),
    "dictionary": (Settings(dictionaries=[Scoped(RULES)]), "SQL in New York City, not in New York. MySQL stays, SQL"),
    "numbers": (
        Settings(normalize="on", style=Style(language="en")),
        "It is 3:05 pm and costs $1,234.56, etc. Henry VIII had 2 cats. Call 911",
    ),
    "Chinese": (Settings(normalize="on", style=Style(language="zh")), "会议在14:30开始。有2个人和2本书。"),
    "all": (
        Settings(normalize="on", dictionaries=[Scoped(RULES)], style=Style(language="de")),
        "<speak>SQL kostet 3,50 €.<break/>Am 3. Oktober <lang xml:lang='en'>on May 5th</lang> usw. Ende</speak>",
    ),
}


async def spoken(text: str, plan: Settings, sizes: list[int], token_level: bool) -> Any:
    """What is said of a text that comes in pieces of these sizes: sentences with their places, and the samples."""
    double, told = Double(), list[Style]()

    def make() -> Written:
        return StreamingText(double, Plan()) if token_level else AsyncLongSpeech(double, Plan())  # type: ignore[arg-type]

    async def speak(style: Style, speech: Written) -> Any:
        told.append(style)
        speech.begin({"seed": 7, "voice": style.voice})
        return speech

    speech = PlannedText(plan, make)
    speech.begin(speak)

    async def write() -> None:
        at = 0
        for size in sizes:
            speech.write(text[at : at + size])
            at += size
            await asyncio.sleep(0)
        speech.write(text[at:])
        speech.end()

    writing = asyncio.create_task(write())
    chunks = [chunk async for chunk in speech]
    await writing
    ends = [chunk for chunk in chunks if chunk.last]
    assert [chunk.sentence_index for chunk in ends] == [*range(len(ends))]
    assert [chunk.index for chunk in chunks] == [*range(len(chunks))]
    sentences = [(chunk.sentence.text, chunk.sentence.start, chunk.sentence.end) for chunk in ends]
    report, samples = speech.report(), np.concatenate([chunk.samples for chunk in chunks])
    assert report.partial is None and abs(report.seconds - len(samples) / RATE) < 1e-6
    said = (sentences, told, report.characters, report.sentences, speech.warnings, (speech.info or {})["frames"])
    return said, samples


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("token_level", [False, True], ids=["sentences", "tokens"])
def test_characters_one_by_one(name: str, token_level: bool) -> None:
    async def test() -> None:
        plan, text = TEXTS[name]
        whole, samples = await spoken(text, plan, [], token_level)
        pieces, again = await spoken(text, plan, [1] * len(text), token_level)
        assert pieces == whole
        assert np.array_equal(samples, again)
        assert whole[2] <= len(text) and whole[0]

    asyncio.run(test())


@given(st.sampled_from([*TEXTS]), st.lists(st.integers(1, 30), max_size=12), st.booleans())
@settings(max_examples=120, deadline=None)
def test_any_pieces(name: str, sizes: list[int], token_level: bool) -> None:
    async def test() -> None:
        plan, text = TEXTS[name]
        whole, samples = await spoken(text, plan, [], token_level)
        pieces, again = await spoken(text, plan, sizes, token_level)
        assert pieces == whole and np.array_equal(samples, again)

    asyncio.run(test())


def silence(seconds: float) -> bytes:
    return bytes(2 * round(seconds * RATE))


def test_our_socket_speaks_ssml() -> None:
    text = "<speak>Good morning.<break time='300ms'/><voice name='bob'>I am Bob.</voice><break time='1s'/></speak>"

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            for character in text:
                await caller.send("input.text", text=character)
            await caller.send("input.done")
            messages = await caller.until("session.done")
        first, second = (pcm16(samples_of(words, 7)) for words in ("Good morning.", "I am Bob."))
        assert audio_of(messages) == first + silence(0.3) + second + silence(1)
        assert [speech.options["voice"] for speech in gateway.double.speeches] == ["ada", "bob"]
        events = events_of(messages)
        starts = [event for event in events if event["type"] == "audio.start"]
        assert [(each["sentence_index"], text[each["start"] : each["end"]]) for each in starts] == [
            (0, "Good morning."),
            (1, "I am Bob."),
        ]
        assert events[-1]["milliseconds"] == 80 * 5 + 1300 and events[-1]["characters"] == text.index("</voice>")

    run(test)


@pytest.mark.parametrize("mode", ["sentence", "token_level"])
def test_what_is_asked_by_fields(mode: str) -> None:
    text = "SQL costs $5.[pause:200ms] Good."
    asked = {
        "inline_pauses": True,
        "normalize": "on",
        "language": "English",
        "pronunciations": [{"string_to_replace": "SQL", "alias": "sequel"}],
    }

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(**asked, streaming_mode=mode)
            for character in text:
                await caller.send("input.text", text=character)
            await caller.send("input.done")
            messages = await caller.until("session.done")
        done = [event for event in events_of(messages) if event["type"] == "audio.done"]
        assert gateway.double.texts == ["sequel costs five dollars.", " Good."][: len(done)] or [
            text.strip() for text in gateway.double.texts
        ] == ["sequel costs five dollars.", "Good."]

    run(test)


def test_a_flush_decides_what_waits() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(normalize="on", language="English")
            await caller.send("input.text", text="I have 5")
            await caller.send("input.flush")
            messages = await caller.until("audio.done")
            assert events_of(messages)[0]["sentence_text"] == "I have five"
            await caller.send("input.text", text=" cats.")
            await caller.send("input.done")
            assert events_of(await caller.until("audio.done"))[0]["sentence_text"] == "cats."

    run(test)


def test_wrong_ssml_ends_with_an_error_behind_its_audio() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="<speak>Good morning. Then ")
            await caller.send("input.text", text="<b>more</speak>")
            await caller.send("input.done")
            messages = await caller.until("session.done")
            error, done = [event for event in events_of(messages) if event["type"] in ("error", "session.done")]
            assert error["error"]["code"] == "invalid_ssml" and "line 1" in error["error"]["message"]
            assert done["failed"] and done["finish_reason"] == "invalid_ssml"
            assert audio_of(messages).startswith(pcm16(samples_of("Good morning.", 7)))
            await caller.send("input.text", text="It goes on.")
            await caller.send("input.done")
            assert audio_of(await caller.until("session.done")) == pcm16(samples_of("It goes on.", 7))

    run(test)


def test_warnings_are_told_and_a_strict_gateway_refuses() -> None:
    text = "<speak><emphasis>Good</emphasis> morning.</speak>"

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text=text)
            await caller.send("input.done")
            messages = events_of(await caller.until("session.done"))
        told = [event["message"] for event in messages if event["type"] == "warning"]
        refused = [event["error"]["message"] for event in messages if event["type"] == "error"]
        assert len(told) + len(refused) == 1 and "emphasis" in [*told, *refused][0]
        assert bool(refused) == strict

    for strict in (False, True):
        run(test, strict=strict)


def test_expansions_count_for_the_key(tmp_path: Any) -> None:
    (tmp_path / "keys").write_text("s3cret speak characters_per_minute=100\n")
    rules = [{"string_to_replace": "a", "alias": "word " * 90}]

    async def test(gateway: Gateway) -> None:
        headers = {"Authorization": "Bearer s3cret"}
        async with gateway.call(additional_headers=headers) as caller:
            await caller.configure(pronunciations=rules)
            await caller.send("input.text", text="a a ")
            await caller.send("input.done")
            error = (await caller.until("error"))[-1]["error"]
            assert "characters" in error["message"]

    run(test, api_keys_file=str(tmp_path / "keys"))


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (
            "<speak>Good morning.<break time='100ms'/> <sub alias='World Wide Web'>WWW</sub> <mark name='m'/></speak>",
            {},
        ),
        ("Nothing <b> is asked. Here.", {}),
        ("SQL costs $5.", {"normalize": "on", "language": "English"}),
        (
            "a  b[pause:1s]a. ",
            {"inline_pauses": True, "pronunciations": [{"string_to_replace": "a", "alias": "word"}]},
        ),
    ],
)
def test_a_key_pays_what_is_spoken_as_over_http(tmp_path: Any, text: str, more: dict[str, Any]) -> None:
    (tmp_path / "keys").write_text("s3cret speak characters_per_minute=1000\n")
    headers = {"Authorization": "Bearer s3cret"}
    paid = list[int]()

    async def test(gateway: Gateway) -> None:
        took: Any = Characters.take

        def take(characters: Characters, count: int) -> None:
            paid[-1] += count
            took(characters, count)

        monkeypatch.setattr(Characters, "take", take)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", headers=headers) as http:
            paid.append(0)
            answer = await http.post("/v1/audio/speech", json={"input": text, "voice": "ada", "seed": 7, **more})
            assert answer.status_code == 200
        for pieces in ([text], [*text]):
            paid.append(0)
            async with gateway.call(additional_headers=headers) as caller:
                await caller.configure(**more)
                for piece in pieces:
                    await caller.send("input.text", text=piece)
                await caller.send("input.done")
                await caller.until("session.done")

    with pytest.MonkeyPatch.context() as monkeypatch:
        run(test, api_keys_file=str(tmp_path / "keys"))
    assert paid[0] == paid[1] == paid[2] > 0


@pytest.mark.parametrize("mode", ["sentence", "token_level"])
def test_marks_are_told_with_their_sentence(mode: str) -> None:
    text = (
        "<speak><mark name='a'/>One two. Three <mark name='b'/>four.<mark name='c'/><break/><mark name='d'/>"
        "Five.<mark name='e'/></speak>"
    )

    async def test(gateway: Gateway) -> None:
        told = list[list[tuple[str, int, int]]]()
        for pieces in ([text], [*text]):
            async with gateway.call() as caller:
                await caller.configure(streaming_mode=mode)
                for piece in pieces:
                    await caller.send("input.text", text=piece)
                await caller.send("input.done")
                events = events_of(await caller.until("session.done"))
            marks = [event for event in events if event["type"] == "mark"]
            told.append([(mark["name"], mark["sentence_index"], mark["start"]) for mark in marks])
            for mark in marks:
                start = next(
                    event
                    for event in events
                    if event["type"] == "audio.start" and event["sentence_index"] == mark["sentence_index"]
                )
                assert events.index(start) < events.index(mark)
        places = [text.index(f"<mark name='{name}'") for name in "abcde"]
        sentences = [0, 1, 2, 2, 2] if mode == "sentence" else [0, 0, 1, 1, 1]
        assert told[0] == told[1] == list(zip("abcde", sentences, places, strict=True))

    run(test)


@pytest.mark.parametrize("form", ["pcm", "wav", "mp3", "mulaw"])
def test_a_text_of_files_ends_with_a_silence_or_a_mark(form: str) -> None:
    words = ("<speak>One two. Three.", "<mark name='a'/>", "<break time='1s'/>", "<mark name='b'/></speak>")

    async def spoken(gateway: Gateway, pieces: Sequence[str]) -> Any:
        async with gateway.call() as caller:
            await caller.configure(response_format=form, stream_audio=False)
            for piece in pieces:
                await caller.send("input.text", text=piece)
                await asyncio.sleep(0.05)
            await caller.send("input.done")
            return await caller.until("session.done")

    async def test(gateway: Gateway) -> None:
        plain = await spoken(gateway, [words[0] + "</speak>"])
        for pieces in ([words[0] + words[1] + words[3]], ["".join(words)], words):
            messages = await spoken(gateway, pieces)
            events = events_of(messages)
            assert not [event for event in events if event["type"] == "error"]
            assert [event["name"] for event in events if event["type"] == "mark"] == ["a", "b"]
            longer = events[-1]["milliseconds"] - events_of(plain)[-1]["milliseconds"]
            assert longer == (1000 if words[2] in "".join(pieces) else 0)
            if form == "pcm":
                assert audio_of(messages) == audio_of(plain) + silence(longer / 1000)

    run(test)


@pytest.mark.parametrize("begun", [0, 1], ids=["the first part", "a later part"])
def test_closed_while_a_part_is_asked_for(begun: int) -> None:
    """What is closed twice is over once, also where its next speech is not there yet."""

    async def test() -> None:
        double, asked = Double(), asyncio.Event()
        made: list[AsyncLongSpeech] = []

        def make() -> Written:
            made.append(AsyncLongSpeech(double, Plan()))  # type: ignore[arg-type]
            return made[-1]

        async def speak(style: Style, speech: Written) -> Any:
            if speech is made[begun]:
                asked.set()
                await asyncio.Event().wait()
            speech.begin({"seed": 7, "voice": style.voice})
            return speech

        speech = PlannedText(Settings(inline_pauses=True), make)
        speech.write("One. [pause:1s] Two.")
        speech.end()
        speech.begin(speak)

        async def read() -> list[Any]:
            return [chunk async for chunk in speech]

        reading = asyncio.create_task(read())
        await asyncio.wait_for(asked.wait(), 10)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.sleep(0)
        speech.close()
        with pytest.raises(Cancelled):
            await anext(made[begun])

    asyncio.run(test())


def test_parts_of_one_voice_share_its_clip() -> None:
    async def test(gateway: Gateway) -> None:
        clip = "data:audio/wav;base64," + base64.b64encode(b"RIFF" + bytes(100)).decode()
        async with gateway.call() as caller:
            await caller.configure(voice=None, reference_audio=clip, inline_pauses=True)
            await caller.send("input.text", text="One. [pause:1s] Two. [pause:1s] Three.")
            await caller.send("input.done")
            await caller.until("session.done")
        first, *others = (speech.options["reference_audio"] for speech in gateway.double.speeches)
        assert first and len(others) == 2 and all(each is first for each in others)

    run(test)


def test_cancelled_between_parts() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="<speak>One two.<break time='2s'/>Three four.<break/>")
            while not isinstance(await caller.next(), bytes):
                pass
            await caller.send("cancel", played_ms=1000)
            told = (await caller.until("session.cancelled"))[-1]
            assert told["milliseconds"] <= 1000 and told["characters"] in (0, len("<speak>One two."))

    run(test)
