"""Even loudness: the gain of a voice, and when it is measured."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from voice_clone_client import AsyncClient, Chunk, InvalidArgument, Overloaded, Unsupported, VoiceNotFound, pcm16
from voice_clone_gateway.speech.loudness import MOST_AHEAD, Loudness
from voice_clone_sound.limiter import Limiter
from voice_clone_sound.loudness import TEXTS, gain_of, loudness_of

from tests.support.doubles import triton_double
from tests.support.doubles.fakes import Voices, clip
from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.speech_double import RATE, Double, DoubleSpeech, samples_of
from tests.support.doubles.websocket_calls import Gateway, audio_of, run
from tests.support.waiting import WAIT, until
from tests.unit.gateway.test_dictionaries import answers_of

VOICE = {"model": "qwen3_tts", "voice": "Ada"}
INFO = {"mode": "icl", "voice_digest": "1" * 64}
FIGURE = loudness_of([samples_of(text, 1770) for text in TEXTS], RATE)
CHUNK = Chunk(samples_of("Hello.", 1), RATE, 0, True, None)


def client(double: Double) -> AsyncClient:
    return cast(AsyncClient, double)


class OneChunk(AsyncIterator[Chunk]):
    """A speech of one chunk."""

    def __init__(self, info: dict[str, Any]) -> None:
        self.info = info

    async def __anext__(self) -> Chunk:
        return CHUNK

    def close(self) -> None:
        pass


async def levelled(
    levels: Loudness, double: Double, target: float | None, arguments: dict[str, Any] | None = None, **info: Any
) -> Chunk:
    """The chunk as it is sent."""
    return await anext(levels.levelled(OneChunk({**INFO, **info}), client(double), arguments or VOICE, target))


@pytest.mark.parametrize("rate", (16000, 24000, 44100))
def test_the_loudness_of_a_tone_is_that_of_the_standard(rate: int) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 997 * np.arange(5 * rate) / rate)
    assert loudness_of([tone.astype(np.float32)], rate) == pytest.approx(-9.03, abs=0.05)


@pytest.mark.parametrize("sound", (np.zeros(RATE * 3), np.ones(RATE // 10), np.zeros(0)))
def test_a_sound_without_a_loudness_gets_no_gain(sound: Any) -> None:
    assert loudness_of([sound.astype(np.float32)], RATE) is None
    assert gain_of(None, -18) == 1.0


def test_without_the_package_that_measures_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyebur128", None)
    with pytest.raises(Unsupported, match="pyebur128"):
        loudness_of([CHUNK.samples], RATE)


@given(figure=st.floats(-80, 0), target=st.floats(-40, -10))
def test_the_gain_is_the_difference_within_bounds(figure: float, target: float) -> None:
    assert 20 * np.log10(gain_of(figure, target)) == pytest.approx(np.clip(target - figure, -20, 20), abs=1e-4)


def test_a_speech_has_the_loudness_that_is_asked_for() -> None:
    double = Double()
    assert FIGURE is not None
    chunk = asyncio.run(levelled(Loudness(), double, -18))
    assert np.array_equal(chunk.samples, CHUNK.samples * gain_of(FIGURE, -18))
    assert double.texts == [*TEXTS]


def test_without_a_wish_nothing_is_measured_and_the_chunks_are_the_same() -> None:
    double = Double()
    assert asyncio.run(levelled(Loudness(), double, None)) is CHUNK
    assert double.texts == []


def test_a_voice_is_measured_once_whatever_it_speaks() -> None:
    double = Double()

    async def speak() -> None:
        loudness = Loudness()
        await asyncio.gather(*(levelled(loudness, double, target) for target in (-18, -23, -18)))
        await levelled(loudness, double, -16, {**VOICE, "seed": 3, "temperature": 0.2})

    asyncio.run(speak())
    assert double.texts == [*TEXTS]


@pytest.mark.parametrize(
    ("arguments", "info"),
    (
        ({"model": "voxtral"}, {}),
        ({}, {"voice_digest": "2" * 64}),
        ({}, {"mode": "x_vector"}),
        ({"voice": None, "reference_audio": b"other"}, {"voice_digest": None}),
        ({"voice": None, "speaker_embedding": [0.5, 1.0]}, {"voice_digest": None}),
    ),
)
def test_another_voice_family_or_generation_is_measured_anew(arguments: dict[str, Any], info: dict[str, Any]) -> None:
    double = Double(rates={"qwen3_tts": RATE, "voxtral": RATE})

    async def speak() -> None:
        loudness = Loudness()
        await levelled(loudness, double, -18)
        for _ in range(2):
            await levelled(loudness, double, -18, {**VOICE, **arguments}, **info)

    asyncio.run(speak())
    assert double.texts == [*TEXTS] * 2


def test_a_figure_that_cannot_be_had_fails_its_speeches_and_is_tried_again() -> None:
    class Full(Double):
        full = True

        def speak(self, text: str, **options: Any) -> DoubleSpeech:
            return super().speak("Fail." if self.full else text, **options)

    double = Full()

    async def speak() -> Chunk:
        loudness = Loudness()
        failed = await asyncio.gather(*(levelled(loudness, double, -18) for _ in range(2)), return_exceptions=True)
        assert [type(error) for error in failed] == [Overloaded] * 2
        double.full = False
        return await levelled(loudness, double, -18)

    assert np.array_equal(asyncio.run(speak()).samples, CHUNK.samples * gain_of(FIGURE, -18))


def test_a_caller_that_leaves_takes_the_figure_from_no_other() -> None:
    double = Double(asyncio.Semaphore(0))

    async def speak() -> None:
        loudness = Loudness()
        leaving, staying = (asyncio.create_task(levelled(loudness, double, -18)) for _ in range(2))
        while len(double.speeches) < len(TEXTS):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert double.gate is not None
        for _ in range(1000):
            double.gate.release()
        await staying

    asyncio.run(speak())
    assert double.texts == [*TEXTS]


def test_a_voice_is_measured_before_its_speech_is_read() -> None:
    double = Double()

    async def speak() -> list[Chunk]:
        spoken = double.speak("Hello there.", seed=1)
        speech = Loudness().levelled(spoken, client(double), VOICE, -18)
        while len(double.speeches) < 1 + len(TEXTS):
            await asyncio.sleep(0)
        assert spoken.index == 1
        return [chunk async for chunk in speech]

    chunks = asyncio.run(speak())
    sound = samples_of("Hello there.", 1) * gain_of(FIGURE, -18)
    assert np.array_equal(np.concatenate([chunk.samples for chunk in chunks]), sound)


def test_a_speech_that_nobody_reads_can_be_closed() -> None:
    async def speak(double: Double) -> None:
        speech = Loudness().levelled(double.speak("Hello.", seed=1), client(double), VOICE, -18)
        await asyncio.sleep(0)
        speech.close()
        while len(asyncio.all_tasks()) > 1:  # none stays
            await asyncio.sleep(0)

    asyncio.run(speak(Double(asyncio.Semaphore(0))))


def test_what_is_not_to_be_kept_is_not() -> None:
    double = Double()

    async def speak() -> None:
        loudness = Loudness()
        for _ in range(2):
            await levelled(loudness, double, -18, {**VOICE, "cache": False})

    asyncio.run(speak())
    assert double.texts == [*TEXTS] * 2
    assert all(speech.options["cache"] is False for speech in double.speeches)


class KnownSpeech(DoubleSpeech):
    """A speech in a registered voice."""

    async def __anext__(self) -> Chunk:
        chunk = await super().__anext__()
        self.info = {**(self.info or {}), "voice": self.options["voice"], "generation": 3}
        return chunk


class Keeper(Double):
    """A double that keeps how loud voices are."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, dict[str, Any]] = {}

    async def keep_loudness(self, name: str, loudness: float, **of: Any) -> None:
        self.kept[name] = {"loudness": loudness, **of}

    def speak(self, text: str, **options: Any) -> DoubleSpeech:
        self.speeches.append(KnownSpeech(self, text, options))
        return self.speeches[-1]


def test_the_figure_is_kept_with_the_voice_and_serves_other_gateways() -> None:
    double = Keeper()

    async def speak() -> None:
        about = {"voice": "Ada", "generation": 3}
        measured = await levelled(Loudness(), double, -18, **about)
        assert double.kept == {"Ada": {"loudness": FIGURE, "generation": 3, "mode": "icl", "model": "qwen3_tts"}}
        known = await levelled(Loudness(), double, -18, **about, loudness=FIGURE)
        assert np.array_equal(measured.samples, known.samples)

    asyncio.run(speak())
    assert double.texts == [*TEXTS], "the second gateway measures nothing"


@pytest.mark.parametrize("error", (InvalidArgument("unknown operation"), VoiceNotFound("it was replaced")))
def test_a_server_that_keeps_nothing_is_no_error(error: Exception) -> None:
    double = Keeper()

    async def refuse(name: str, loudness: float, **of: Any) -> None:
        raise error

    double.keep_loudness = refuse  # type: ignore[method-assign]
    chunk = asyncio.run(levelled(Loudness(), double, -18, voice="Ada", generation=3))
    assert np.array_equal(chunk.samples, CHUNK.samples * gain_of(FIGURE, -18))


@pytest.mark.parametrize("wanted", (True, False))
def test_new_voices_are_measured_where_the_gateway_is_to(serve: Serve, tmp_path: Path, wanted: bool) -> None:
    voices = Voices(tmp_path / "voices")
    with triton_double.listening() as triton, closing(voices.cache):
        triton.answer = answers_of(voices)
        http = serve(triton.url, measure_voices=wanted)
        file = {"audio_sample": ("a.wav", clip())}
        ours = http.post("/v1/audio/voices", data={"name": "Ada", "consent": "yes"}, files=file)
        theirs = http.post("/v1/voices/add", data={"name": "Bob", "consent": "yes"}, files={"files": clip(1)})
        assert (ours.status_code, theirs.status_code) == (200, 200), (ours.text, theirs.text)
        measured = 2 * len(TEXTS) if wanted else 0
        until(lambda: len(triton.speeches) == measured)
        spoken = {(inputs["voice"].decode(), inputs["text"].decode()) for _, inputs in triton.speeches}
        assert spoken == ({(voice, text) for voice in ("Ada", "Bob") for text in TEXTS} if wanted else set())


def test_many_new_voices_are_measured_one_after_the_other(serve: Serve, tmp_path: Path) -> None:
    voices, go = Voices(tmp_path / "voices"), threading.Event()

    def wait(context: Any) -> Any:
        assert go.wait(WAIT)
        yield triton_double.chunk(0, final=True)

    with triton_double.listening() as triton, closing(voices.cache):
        triton.answer, triton.play = answers_of(voices), wait
        http = serve(triton.url, measure_voices=True)
        for index in range(MOST_AHEAD + 4):
            file = {"audio_sample": ("a.wav", clip(index))}
            made = http.post("/v1/audio/voices", data={"name": f"Ada {index}", "consent": "yes"}, files=file)
            assert made.status_code == 200, made.text
        until(lambda: len(triton.speeches) == len(TEXTS))
        time.sleep(0.3)
        assert len(triton.speeches) == len(TEXTS), "the others wait"
        go.set()
        until(lambda: len(triton.speeches) == MOST_AHEAD * len(TEXTS))
        time.sleep(0.3)
        assert len(triton.speeches) == MOST_AHEAD * len(TEXTS), "there was no room for the last four"


# -------------------------------------------------------------------------------------------------------- over the wire


def heard(sound: Any, figure: float | None, target: float) -> bytes:
    """What is sent of a speech."""
    return pcm16(Limiter(RATE).push(sound * gain_of(figure, target), final=True))


SPOKEN = np.concatenate([triton_double.samples_of(index, 1920) for index in range(3)])  # the double's, of any text
BODY = {"input": "Hello there.", "voice": "ada", "response_format": "pcm", "loudness": -18}


@pytest.mark.parametrize(
    ("path", "body"),
    (
        ("/v1/audio/speech", BODY),
        ("/v1/audio/speech", BODY | {"stream": False}),
        ("/v1/text-to-speech/ada/stream?output_format=pcm_24000&loudness=-18", {"text": "Hello there."}),
        (
            "/v1/text-to-dialogue?output_format=pcm_24000&loudness=-18",
            {"inputs": [{"text": "Hello there.", "voice_id": "ada"}]},
        ),
        ("/v1/speak?model=ada&encoding=linear16&container=none&sample_rate=24000&loudness=-18", {"text": "Hello."}),
        (
            "/tts/bytes?loudness=-18",
            {
                "model_id": "sonic-2",
                "transcript": "Hello.",
                "voice": {"mode": "id", "id": "ada"},
                "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
            },
        ),
    ),
)
def test_all_calls_over_http_have_the_loudness(shared: Shared, path: str, body: dict[str, Any]) -> None:
    _, http = shared
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.content == heard(SPOKEN, loudness_of([SPOKEN, SPOKEN], RATE), -18) != pcm16(SPOKEN)


def test_each_voice_of_a_speech_has_a_gain(shared: Shared) -> None:
    triton, http = shared
    segments = [{"voice": name, "text": f"This is {name}."} for name in ("cleo", "dora", "cleo")]
    answer = http.post("/v1/audio/speech", json={"segments": segments, "response_format": "pcm", "loudness": -18})
    figure = loudness_of([SPOKEN, SPOKEN], RATE)
    assert answer.content == heard(np.concatenate([SPOKEN] * 3), figure, -18)
    asked = [(inputs["voice"].decode(), inputs["text"].decode()) for _, inputs in triton.speeches]
    assert sorted(voice for voice, text in asked if text in TEXTS) == ["cleo", "cleo", "dora", "dora"]


@pytest.mark.parametrize("value", (-41, -9.9, "loud", True))
def test_a_loudness_that_cannot_be_is_refused(shared: Shared, value: Any) -> None:
    _, http = shared
    ours = http.post("/v1/audio/speech", json={**BODY, "loudness": value})
    theirs = http.post(f"/v1/text-to-speech/ada?loudness={value}", json={"text": "Hello."})
    assert (ours.status_code, ours.json()["error"]["param"]) == (400, "loudness")
    assert theirs.status_code == 400 and "loudness" in theirs.text


def test_the_sentences_of_a_socket_have_one_gain() -> None:
    async def test(gateway: Gateway) -> None:
        async with gateway.call() as caller:
            await caller.configure(loudness=-18)
            await caller.send("input.text", text="The first sentence here. Now the second one.")
            await caller.send("input.done")
            got = audio_of(await caller.until("session.done"))
        said = [text for text in gateway.double.texts if text not in TEXTS]
        sound = np.concatenate([speech_samples(text, gateway.double) for text in said])
        assert len(said) == 2 and got == heard(sound, FIGURE, -18)
        assert len(gateway.double.texts) == 2 + len(TEXTS)

    run(test)


def speech_samples(text: str, double: Double) -> Any:
    return samples_of(text, next(speech.options["seed"] for speech in double.speeches if speech.text == text))
