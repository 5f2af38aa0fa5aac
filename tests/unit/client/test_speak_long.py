"""A text of any length by both clients. The server is a double: the length of a speech tells its text and seed."""

from __future__ import annotations

import asyncio
import gc
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import voice_clone_client as vc
from voice_clone_client.callers import on_behalf_of
from voice_clone_client.long_text.plan import sentence_seed
from voice_clone_text.sentences import MAX_CHARACTERS

from tests.support.doubles.gateway_thread import serving
from tests.support.doubles.triton_double import Failure, Server, chunk, endless
from tests.support.waiting import WAIT, until

SENTENCES = [f"This is the sentence number {name}." for name in ("one", "two", "three", "four", "five", "six")]
TEXT = " ".join(SENTENCES)
SPLIT = {"voice": "ada", "sentence_characters": 40}  # each sentence by itself


@pytest.fixture
def triton(triton: Server) -> Server:
    triton.play = lambda context: one_speech(triton, "stop")
    return triton


def one_speech(triton: Server, reason: str) -> Iterator[Any]:
    """The speech that was asked for last."""
    inputs = triton.speeches[-1][1]
    count = 1 + zlib.crc32(inputs["text"] + str(inputs.get("seed")).encode()) % 1000
    yield chunk(0, count=count, info={"cache": "hit"})
    yield chunk(1, final=True, count=count, info={"frames": 2, "text_tokens": 5, "finish_reason": reason})


def ends(triton: Server, *reasons: str) -> None:
    """The speeches end so, one after another; the last repeats."""
    left = list(reasons)
    triton.play = lambda context: one_speech(triton, left.pop(0) if len(left) > 1 else left[0])


def texts(triton: Server) -> list[str]:
    return [inputs["text"].decode() for _, inputs in triton.speeches]


class Long:
    """`speak_long` of either client, with a speech that was read, or iterated."""

    def __init__(self, url: str, asynchronous: bool) -> None:
        self._url, self._asynchronous = url, asynchronous

    def __call__(self, text: str, *, read: bool, **options: Any) -> tuple[list[vc.Chunk], np.ndarray[Any, Any], Any]:
        """Its chunks, or none if it was read; its samples; the speech."""
        chunks: list[vc.Chunk] = []
        if not self._asynchronous:
            with vc.Client(self._url) as client, client.speak_long(text, **options) as speech:
                chunks = [] if read else list(speech)
                return chunks, speech.read()[0] if read else joined(chunks), speech

        async def run() -> Any:
            async with vc.AsyncClient(self._url) as client, client.speak_long(text, **options) as speech:
                chunks = [] if read else [chunk async for chunk in speech]
                return chunks, (await speech.read())[0] if read else joined(chunks), speech

        return asyncio.run(run())  # type: ignore[no-any-return]


def joined(chunks: list[vc.Chunk]) -> np.ndarray[Any, Any]:
    return np.concatenate([chunk.samples for chunk in chunks])


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def speak_long(triton: Server, request: pytest.FixtureRequest) -> Long:
    return Long(triton.url, request.param)


@pytest.mark.parametrize("seed", [7, None])
def test_clients_and_gateway_speak_the_same(triton: Server, seed: int | None) -> None:
    text = " ".join([TEXT] * 3)
    assert len(text) > MAX_CHARACTERS
    with vc.Client(triton.url) as client:
        spoken = [
            client.speak(sentence, voice="ada", seed=sentence_seed(seed, index)).read()[0]
            for index, sentence in enumerate(SENTENCES * 3)
        ]
    expected, asked = np.concatenate(spoken), triton.speeches[:]
    for asynchronous in (False, True):
        del triton.calls[:]
        assert np.array_equal(Long(triton.url, asynchronous)(text, read=True, voice="ada", seed=seed)[1], expected)
        assert triton.speeches == asked
    body = {"input": text, "voice": "ada", "seed": seed, "response_format": "pcm"}
    with serving() as serve:
        assert serve(triton.url).post("/v1/audio/speech", json=body).content == vc.pcm16(expected)


@pytest.mark.parametrize("text", ["Hi.", "One. Two!\n\n Three. ", "x" * MAX_CHARACTERS])
def test_a_short_text_is_an_ordinary_speech(triton: Server, speak_long: Long, text: str) -> None:
    with vc.Client(triton.url) as client:
        speech = client.speak(text, voice="ada", seed=3)
        expected = list(speech)
    chunks, _, spoken = speak_long(text, read=False, voice="ada", seed=3)
    assert triton.speeches[0] == triton.speeches[1]
    assert np.array_equal(joined(chunks), joined(expected))
    assert [each.final for each in chunks] == [False, True]
    assert (spoken.info, spoken.finish_reason, spoken.whole) == (speech.info, "stop", True)


def test_what_a_long_speech_says_of_itself(speak_long: Long) -> None:
    chunks, samples, speech = speak_long(TEXT, read=False, **SPLIT)
    assert [each.index for each in chunks] == list(range(12))
    assert [each.final for each in chunks] == [False] * 11 + [True]
    assert (speech.info["sentences"], speech.info["frames"], speech.info["text_tokens"]) == (6, 12, 30)
    assert (speech.finish_reason, speech.whole, speech.status.state) == ("stop", True, "finished")
    assert speech.status.seconds == pytest.approx(len(samples) / 24000)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_all_sentences_are_for_the_caller_for_whom_it_began(triton: Server, asynchronous: bool) -> None:
    async def run() -> None:
        async with vc.AsyncClient(triton.url, model="qwen3_tts") as client:
            with on_behalf_of("eve"):
                speech = client.speak_long(TEXT, **SPLIT)
            await speech.read()

    if asynchronous:
        asyncio.run(run())
    else:
        with vc.Client(triton.url, model="qwen3_tts") as client:
            with on_behalf_of("eve"):
                speech = client.speak_long(TEXT, **SPLIT)
            speech.read()
    assert [caller for caller, _ in triton.callers] == ["eve"] * 6


def test_pauses(speak_long: Long) -> None:
    text = f"{SENTENCES[0]} {SENTENCES[1]}\n\n{SENTENCES[2]}"
    bare = len(speak_long(text, read=True, seed=1, **SPLIT)[1])
    paused = speak_long(text, read=True, seed=1, sentence_pause=0.5, paragraph_pause=2.0, **SPLIT)[1]
    assert len(paused) - bare == 2.5 * 24000


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("misses", [1, 2, 3])
def test_a_missed_end_is_tried_again(triton: Server, speak_long: Long, read: bool, misses: int) -> None:
    ends(triton, "stop", *["budget"] * misses, "stop")
    _, _, speech = speak_long(TEXT, read=read, hold=not read, **SPLIT)
    retried = min(misses, 2)
    assert len(triton.speeches) == 6 + retried and texts(triton).count(SENTENCES[1]) == 1 + retried
    assert speech.info["retries"] == retried and speech.info["sentences"] == 6
    assert (speech.whole, speech.finish_reason) == ((True, "stop") if misses < 3 else (False, "budget"))


@pytest.mark.parametrize("given", [{"seed": 7}, {"do_sample": False}, {"retries": 0}])
def test_what_would_be_the_same_is_not_tried_again(triton: Server, speak_long: Long, given: dict[str, Any]) -> None:
    ends(triton, "runaway", "stop")
    _, _, speech = speak_long(TEXT, read=True, **SPLIT, **given)
    assert len(triton.speeches) == 6 and "retries" not in speech.info
    assert (speech.whole, speech.finish_reason) == (False, "runaway")


def test_what_was_read_is_not_tried_again(triton: Server, speak_long: Long) -> None:
    ends(triton, "runaway", "stop")
    chunks, _, speech = speak_long("Hi.", read=False, voice="ada")
    assert (len(triton.speeches), len(chunks), speech.finish_reason) == (1, 2, "runaway")
    ends(triton, "budget")
    with pytest.raises(vc.Incomplete):
        speak_long("Hi.", read=False, voice="ada", require_whole=True)


def test_reading_tries_again_what_was_made_before_it(triton: Server) -> None:
    ends(triton, "budget", "stop")
    with vc.Client(triton.url) as client, client.speak_long("Hi.", voice="ada") as speech:
        until(lambda: speech._speech._speeches[0].made)
        speech.read()
    assert len(triton.speeches) == 2 and speech.whole


def test_a_missed_end_is_an_error_if_the_caller_says_so(triton: Server, speak_long: Long) -> None:
    ends(triton, "stop", "budget")
    with pytest.raises(vc.Incomplete) as raised:
        speak_long(TEXT, read=True, require_whole=True, **SPLIT)
    assert raised.value.finish_reason == "budget" and texts(triton).count(SENTENCES[1]) == 3


def test_an_error_comes_after_the_audio_before_it(triton: Server) -> None:
    def play(context: Any) -> Iterator[Any]:
        if len(triton.speeches) == 3:
            raise Failure(grpc.StatusCode.UNAVAILABLE, "overloaded: the queue is full")
        return one_speech(triton, "stop")

    triton.play = play
    with vc.Client(triton.url) as client, client.speak_long(TEXT, **SPLIT) as speech:
        assert len([*islice(speech, 4)]) == 4
        with pytest.raises(vc.Overloaded):
            next(speech)
        with pytest.raises(vc.Cancelled):
            next(speech)
    assert speech.status.state == "failed" and len(triton.speeches) == 3


@pytest.mark.parametrize("how", ["close", "forget", "client"])
def test_what_is_not_wanted_is_not_made(triton: Server, how: str) -> None:
    triton.play = endless(0.01)
    client = vc.Client(triton.url)
    speech: Any = client.speak_long(TEXT, **SPLIT)
    next(speech)
    if how == "close":
        speech.close()
        with pytest.raises(vc.Cancelled):
            next(speech)
        assert speech.status.state == "cancelled"
    elif how == "client":
        client.close()
        with pytest.raises(vc.Cancelled):
            speech.read()
    else:
        del speech
        gc.collect()
    assert triton.left.acquire(timeout=WAIT) and len(triton.speeches) == 1
    client.close()


def test_a_reader_that_stops_keeps_the_server_from_the_rest(triton: Server) -> None:
    text = " ".join(SENTENCES * 5)
    with vc.Client(triton.url) as client, client.speak_long(text, **SPLIT) as speech:
        next(speech)
        until(lambda: len(triton.speeches) == 3)  # the one that is read, and two ahead
        assert len([*speech]) == 59 and len(triton.speeches) == 30


def test_a_deadline_is_that_of_the_whole_speech(triton: Server, speak_long: Long) -> None:
    left: list[float] = []

    def play(context: Any) -> Iterator[Any]:
        left.append(context.time_remaining())
        if len(left) == 4:
            yield from endless(0.01)(context)
        time.sleep(0.1)
        yield from one_speech(triton, "stop")

    triton.play = play
    with pytest.raises(vc.DeadlineExceeded):
        speak_long(TEXT, read=True, deadline=1.0, **SPLIT)
    assert left[3] < 0.7


def test_the_files_are_read_once(triton: Server, tmp_path: Path) -> None:
    clip = tmp_path / "a.wav"
    clip.write_bytes(b"RIFF of a clip")
    with (
        vc.Client(triton.url) as client,
        client.speak_long(TEXT, reference_audio=clip, sentence_characters=40) as speech,
    ):
        next(speech)
        clip.unlink()
        speech.read()
    assert [inputs["reference_audio"] for _, inputs in triton.speeches] == [b"RIFF of a clip"] * 6


def test_without_a_voice_a_text_is_not_split(triton: Server, speak_long: Long) -> None:
    speak_long(TEXT, read=True, sentence_characters=40)
    assert texts(triton) == [TEXT]


@pytest.mark.parametrize("text", ["", " \n ", " " * 1000])
def test_a_blank_text_is_refused_by_the_server_alone(triton: Server, speak_long: Long, text: str) -> None:
    speak_long(text, read=True, **SPLIT)
    assert [each.strip() for each in texts(triton)] == [""]


def test_a_text_without_words_is_refused(triton: Server, speak_long: Long) -> None:
    with pytest.raises(vc.InvalidArgument, match="letter or digit"):
        speak_long("... !? " * 100, read=True, **SPLIT)
    assert not triton.speeches


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"speed": 2}, TypeError),
        ({"reference_audio": "/nowhere.wav"}, OSError),
        ({"seed": -1}, vc.InvalidArgument),
        ({"sentence_pause": -1.0}, vc.InvalidArgument),
        ({"sentence_characters": 0}, vc.InvalidArgument),
        ({"retries": -1}, vc.InvalidArgument),
    ],
)
def test_what_cannot_be_asked_for_is_refused_at_once(triton: Server, given: dict[str, Any], error: type) -> None:
    with vc.Client(triton.url) as client, pytest.raises(error):
        client.speak_long(TEXT, **given)
    assert not triton.speeches


def test_each_sentence_is_asked_for_alike(triton: Server) -> None:
    with vc.Client(triton.url, owner="eve", mark="off") as client:
        client.speak_long(TEXT, headers={"traceparent": "00-1"}, model="other", max_frames=9, **SPLIT).read()
    assert {(each.owner, each.mark, each.metadata["traceparent"]) for each in triton.spoken} == {("eve", "off", "00-1")}
    assert {(model, int(inputs["max_frames"][0])) for model, inputs in triton.speeches} == {("other", 9)}


Make = Callable[[], str]


@pytest.mark.parametrize(
    "make", [lambda: "word " * 20_000, lambda: "今天天气很好，我们去公园散步" * 7000, lambda: "x" * 100_000]
)
def test_texts_without_stops_are_cut(triton: Server, make: Make) -> None:
    text = make()
    with vc.Client(triton.url) as client:
        client.speak_long(text, voice="ada").read()
    assert all(len(piece) <= MAX_CHARACTERS for piece in texts(triton))
    assert "".join(texts(triton)).replace(" ", "") == text.replace(" ", "")
