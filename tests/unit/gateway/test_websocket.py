"""What a session on the WebSocket says: each sentence once, in order, in the form that was asked for."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import pytest
import soundfile
from voice_clone_client.long_text.plan import sentence_seed

from tests.support.doubles.speech_double import FRAME, RATE, Double, samples_of
from tests.support.doubles.triton_double import AlignerDouble
from tests.support.doubles.websocket_calls import Gateway, audio_of, events_of, pcm_of, run


def test_a_text_in_pieces() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="The first sentence here. Now ")
            first = await caller.until("audio.done")
            await caller.send("input.text", text="the sec")
            await caller.send("input.text", text="ond")
            await caller.send("input.done")
            rest = await caller.until("session.done")
        reported = events_of(first)
        assert reported[-1].pop("info")["frames"] == 4, "the server's info on this sentence"
        assert reported == [
            {
                "type": "audio.start",
                "utterance_index": 0,
                "sentence_index": 0,
                "sentence_text": "The first sentence here.",
                "start": 0,
                "end": 24,
                "format": "pcm",
                "sample_rate": 24000,
                "seed": 7,
            },
            {
                "type": "audio.done",
                "utterance_index": 0,
                "sentence_index": 0,
                "total_bytes": 4 * FRAME * 2,
                "milliseconds": 320,
                "finish_reason": "stop",
            },
        ]
        assert audio_of(first) == pcm_of("The first sentence here.", 0)
        start, done, end = events_of(rest)
        assert (start["sentence_text"], start["start"], start["end"]) == ("Now the second", 25, 39)
        assert start["seed"] == sentence_seed(7, 1)
        assert done["milliseconds"] == 240
        assert audio_of(rest) == pcm_of("Now the second", 1)
        usage = end.pop("usage")
        assert (usage["input_tokens"], usage["output_tokens"]) == (7, 7)
        assert end == {
            "type": "session.done",
            "utterance_index": 0,
            "total_sentences": 2,
            "characters": 39,
            "milliseconds": 560,
            "finish_reason": "stop",
        }
        assert [one.options["voice"] for one in gateway.double.speeches] == ["ada", "ada"]
        assert gateway.double.speeches[0].options["deadline"] == 600

    run(test)


@pytest.mark.parametrize("mode", ["sentence", "token_level"])
def test_when_words_are_spoken_and_what_was_heard(mode: str) -> None:
    gate = asyncio.Semaphore(7)

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(timestamp_granularities=["word"], streaming_mode=mode, speed=2.0)
            for text in ("The first sen", "tence here. ", "Now the second one."):
                await caller.send("input.text", text=text)
            await caller.send("input.done")
            words = list[Any]()
            while len(words) < 6:
                words += (await caller.until("audio.words"))[-1]["words"]
            await caller.send("cancel", played_ms=5.6 * 1000 * FRAME / RATE / 2)
            [cancelled] = events_of([(await caller.until("session.cancelled"))[-1]])
            assert cancelled["heard"] == "The first sentence here. Now the"
            for _ in range(9):
                gate.release()
            await caller.send("input.text", text="A further text.")
            await caller.send("input.done")
            said = events_of(await caller.until("session.done"))
            more = [word for each in said if each["type"] == "audio.words" for word in each["words"]]
        step = FRAME / RATE / 2
        for told, text in (
            (words, "The first sentence here. Now the"),
            (more, "A further text."),
        ):
            assert " ".join(word["word"] for word in told).startswith(text)
            assert [word["start"] for word in told] == pytest.approx([at * step for at in range(len(told))], abs=1e-3)
            assert not any(word["estimated"] for word in told)

    run(test, Double(gate, align=AlignerDouble(FRAME)))


@pytest.mark.parametrize("mode", ["sentence", "token_level"])
def test_words_of_what_is_spoken_otherwise_are_the_callers(mode: str) -> None:
    text = "He paid 42 [pause:500ms] dollars today."

    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            more = {"inline_pauses": True, "normalize": "on", "language": "English", "streaming_mode": mode}
            await caller.configure(timestamp_granularities=["word"], **more)
            for at in range(0, len(text), 3):
                await caller.send("input.text", text=text[at : at + 3])
            await caller.send("input.done")
            said = events_of(await caller.until("session.done"))
        words = [word for each in said if each["type"] == "audio.words" for word in each["words"]]
        assert "forty-two" in gateway.double.texts[0] or "forty two" in gateway.double.texts[0]
        assert [word["word"] for word in words] == ["He", "paid", "42", "dollars", "today."]
        assert all(text[slice(*word["span"])] == word["word"] for word in words)
        assert words[3]["start"] >= words[2]["end"] + 0.4, "behind the pause"

    run(test, Double(sounds=[samples_of("word", at) for at in range(4)]))


def test_each_sentence_is_spoken_with_the_ready_prompt() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            bundle = base64.b64encode(b"bundle").decode()
            await caller.configure(voice=None, voice_prompt=bundle, cache=False)
            await caller.send("input.text", text="The first sentence here. And the second one.")
            await caller.send("input.done")
            await caller.until("session.done")
        asked = [
            (one.options["voice"], one.options["voice_prompt"], one.options["cache"]) for one in gateway.double.speeches
        ]
        assert asked == [(None, b"bundle", False)] * 2

    run(test)


def test_utterances_are_spoken_one_after_another() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.send("input.text", text="One utterance.")
            await caller.send("input.done")
            await caller.configure(seed=8, response_format="mulaw")
            await caller.send("input.text", text="  Another one.")
            await caller.send("input.done")
            one, other = await caller.until("session.done"), await caller.until("session.done")
        assert audio_of(one) == pcm_of("One utterance.", 0)
        assert [message["utterance_index"] for message in events_of(other)] == [1, 1, 1]
        start, done = events_of(other)[:2]
        assert (start["format"], start["sample_rate"], start["seed"], start["start"]) == ("mulaw", 8000, 8, 2)
        assert len(audio_of(other)) == 2 * FRAME // 3
        assert done["total_bytes"] <= 2 * FRAME // 3, "the resampler looks ahead"

    run(test)


def test_many_sessions_at_once_do_not_mix() -> None:
    async def one(gateway: Gateway, number: int) -> None:
        async with gateway.call() as caller:
            await caller.configure(seed=number)
            text = f"Session {number} speaks. It has two sentences."
            for letter in text:
                await caller.send("input.text", text=letter)
            await caller.send("input.done")
            messages = await caller.until("session.done")
        first, second = f"Session {number} speaks.", "It has two sentences."
        assert audio_of(messages) == pcm_of(first, 0, number) + pcm_of(second, 1, number)

    async def test(gateway: Gateway) -> None:
        await asyncio.gather(*(one(gateway, number) for number in range(20)))

    run(test)


def test_each_sentence_as_a_file() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(response_format="wav", stream_audio=False, sample_rate=48000)
            await caller.send("input.text", text="The first sentence. The second.")
            await caller.send("input.done")
            messages = await caller.until("session.done")
        files = [message for message in messages if isinstance(message, bytes)]
        assert [soundfile.info(io.BytesIO(file)).frames for file in files] == [3 * 2 * FRAME, 2 * 2 * FRAME]
        assert [message["total_bytes"] for message in events_of(messages) if message["type"] == "audio.done"] == [
            len(file) for file in files
        ]

    run(test)


def test_one_continuous_file_and_base64() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(response_format="wav", audio_frames="base64", sentence_pause_ms=100)
            await caller.send("input.text", text="The first sentence. The second.")
            await caller.send("input.done")
            messages = events_of(await caller.until("session.done"))
        data = b"".join(
            base64.b64decode(message["audio_b64"]) for message in messages if message["type"] == "audio.chunk"
        )
        expected = pcm_of("The first sentence.", 0) + bytes(2 * 2400) + pcm_of("The second.", 1)
        samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
        assert (rate, samples.tobytes()) == (24000, expected)

    run(test)


def test_halves_of_characters() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure()
            await caller.connection.send('{"type": "input.text", "text": "Fun \\ud83d"}')
            await caller.connection.send('{"type": "input.text", "text": "\\ude00 it is."}')
            await caller.send("input.done")
            messages = events_of(await caller.until("session.done"))
            assert messages[0]["sentence_text"] == "Fun 😀 it is."

    run(test)
