"""A text that is written while it is spoken, by both clients and the command; the server is a double."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
import pytest
import voice_clone_client as vc
from voice_clone_client.long_text.plan import sentence_seed
from voice_clone_command.cli import main

from tests.support.doubles.triton_double import Failure, Server, chunk
from tests.support.waiting import WAIT, until

SENTENCES = [f"This is sentence number {number}, and it has some more words." for number in range(40)]
TEXT = " ".join(SENTENCES)
Ends = Callable[[int, str], dict[str, Any]]
"""(number of the part, its text) -> `info` of its last chunk."""


def whole(number: int, text: str) -> dict[str, Any]:
    return {"characters": len(text)}


def texts_of(server: Server) -> list[str]:
    """What was appended to each part, in the order in which they began."""
    ids = [call[1]["text_stream"] for call in server.calls if "text_stream" in call[1]]
    appended = [call[1] for call in server.calls if "append" in call[1]]
    return ["".join(piece["text"].decode() for piece in appended if piece["append"] == each) for each in ids]


def reads(server: Server, ends: Ends = whole) -> None:
    """The double waits for the text of a part, and then ends it so."""

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        streams = [call[1]["text_stream"] for call in server.calls if "text_stream" in call[1]]
        number = len(streams) - 1

        def complete() -> bool:
            pieces = [call[1] for call in server.calls if call[1].get("append") == streams[-1]]
            return not context.is_active() or any(piece["last"][0] for piece in pieces)

        until(complete)
        yield chunk(0)
        yield chunk(1, final=True, info={"frames": 2, **ends(number, texts_of(server)[number])})

    server.play = play


def speak(url: str, asynchronous: bool, text: Iterable[str], **more: Any) -> tuple[list[vc.Chunk], Any]:
    """Its chunks, and the speech."""
    if not asynchronous:
        with vc.Client(url) as client, client.speak_stream(text, voice="ada", **more) as speech:
            return list(speech), speech

    async def run() -> tuple[list[vc.Chunk], Any]:
        async with vc.AsyncClient(url) as client, client.speak_stream(text, voice="ada", **more) as speech:
            return [each async for each in speech], speech

    return asyncio.run(asyncio.wait_for(run(), WAIT))


both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@both
@pytest.mark.parametrize("pieces", ["at once", "words"])
def test_all_of_a_long_text_is_spoken_once(triton: Server, asynchronous: bool, pieces: str) -> None:
    reads(triton)
    text = [TEXT] if pieces == "at once" else [word + " " for word in TEXT.split(" ")]
    chunks, speech = speak(triton.url, asynchronous, text, seed=5, require_whole=True)
    parts = texts_of(triton)
    assert len(parts) > 5 and " ".join(parts).split() == TEXT.split()
    assert all(len(part) <= 600 and part.strip().endswith(".") for part in parts)
    assert [each.index for each in chunks] == [*range(2 * len(parts))] or chunks[-1].samples.size == 0
    assert [each.final for each in chunks] == [False] * (len(chunks) - 1) + [True]
    assert speech.whole and speech.info["parts"] == len(parts) and speech.info["frames"] == 2 * len(parts)
    assert speech.info["characters"] == len(TEXT)
    seeds = [int(call[1]["seed"][0]) for call in triton.calls if "text_stream" in call[1]]
    assert seeds == [sentence_seed(5, index) for index in range(len(parts))]


@both
@pytest.mark.parametrize("seed", [None, 5])
def test_the_seed_in_info_repeats_the_whole_speech(triton: Server, asynchronous: bool, seed: int | None) -> None:
    def ends(number: int, text: str) -> dict[str, Any]:
        return {**whole(number, text), "seed": 9 if seed is None and not number else 70 + number}

    reads(triton, ends)
    chunks, speech = speak(triton.url, asynchronous, [TEXT], seed=seed)
    expected = 9 if seed is None else seed
    assert speech.info["parts"] > 2 and speech.info["seed"] == expected
    assert {each.info["seed"] for each in chunks if each.info and "seed" in each.info} == {expected}


@both
def test_a_short_text_is_one_part(triton: Server, asynchronous: bool) -> None:
    reads(triton)
    chunks, speech = speak(triton.url, asynchronous, ["\n Two sentences. ", "They are one part."])
    assert texts_of(triton) == ["\n Two sentences. They are one part."]
    [opened] = [call[1] for call in triton.calls if "text_stream" in call[1]]
    assert {*opened} == {"text_stream", "voice"}
    assert [each.final for each in chunks] == [False, True] and speech.info["parts"] == 1


@both
def test_the_rest_of_a_text_that_a_model_left_is_spoken(triton: Server, asynchronous: bool) -> None:
    def ends(number: int, text: str) -> dict[str, Any]:
        return {"characters": 70, "finish_reason": "text_left"} if number == 0 else {"characters": len(text)}

    reads(triton, ends)
    chunks, speech = speak(triton.url, asynchronous, [TEXT], require_whole=True)
    first, second, *others = texts_of(triton)
    assert first.startswith(second) is False and second == " ".join(SENTENCES[1 : first.count(".")])
    assert " ".join([SENTENCES[0], second, *others]) == TEXT
    assert speech.whole and speech.info["continued"] == 1 and chunks[-1].final


@both
def test_a_model_that_never_reads_on_leaves_text(triton: Server, asynchronous: bool) -> None:
    reads(triton, lambda number, text: {"characters": 9, "finish_reason": "text_left"})
    _, speech = speak(triton.url, asynchronous, [TEXT])
    assert (speech.finish_reason, speech.whole, len(texts_of(triton))) == ("text_left", False, 3)
    with pytest.raises(vc.Incomplete, match="character 9 of the text") as error:
        speak(triton.url, asynchronous, [TEXT], require_whole=True)
    assert (error.value.finish_reason, error.value.characters) == ("text_left", 9)


@both
def test_a_text_that_stays_away(triton: Server, asynchronous: bool) -> None:
    """Another seed would not help."""
    reads(triton, lambda number, text: {"characters": len(text), "finish_reason": "text_timeout"})
    with pytest.raises(vc.Incomplete, match="did not come in time") as error:
        speak(triton.url, asynchronous, ["Hello."], require_whole=True)
    assert "seed" not in str(error.value)


@both
def test_a_server_that_dies_between_chunks(triton: Server, asynchronous: bool) -> None:
    def ends(number: int, text: str) -> dict[str, Any]:
        if number == 1:
            raise Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return {"characters": len(text)}

    reads(triton, ends)
    with pytest.raises(vc.ConnectionFailed, match=r"came to character [1-9]") as error:
        speak(triton.url, asynchronous, [TEXT])
    first, _ = texts_of(triton)[:2]
    assert f"all of the first {TEXT.index(SENTENCES[first.count('.')])} characters was spoken" in str(error.value)


@both
def test_a_further_part_waits_for_a_full_server(triton: Server, asynchronous: bool) -> None:
    reads(triton)
    play, opened = triton.play, iter(range(100))

    def full(context: grpc.ServicerContext) -> Iterator[Any]:
        if next(opened) == 1:
            raise Failure(grpc.StatusCode.UNAVAILABLE, "overloaded: 3 texts are open already; try again later")
        yield from play(context)

    triton.play = full
    _, speech = speak(triton.url, asynchronous, [TEXT], require_whole=True)
    _, refused, again, *_ = texts_of(triton)
    assert speech.whole and again.startswith(refused)


@both
def test_max_frames_is_that_of_the_whole_speech(triton: Server, asynchronous: bool) -> None:
    reads(triton, lambda number, text: {"finish_reason": "length" if number else "stop", "characters": 1})
    _, speech = speak(triton.url, asynchronous, [TEXT], max_frames=4)
    limits = [int(call[1]["max_frames"][0]) for call in triton.calls if "text_stream" in call[1]]
    assert limits == [4, 2] and speech.whole and speech.finish_reason == "length"


@both
def test_it_can_be_closed_between_parts(triton: Server, asynchronous: bool) -> None:
    reads(triton)

    def text() -> Iterator[str]:
        yield TEXT[:400] + "\n\n"
        time.sleep(0.01)
        yield TEXT[400:]

    if not asynchronous:
        with vc.Client(triton.url) as client, client.speak_stream(text(), voice="ada") as speech:
            next(speech)
            next(speech)
            speech.close()
            with pytest.raises(vc.Cancelled):
                next(speech)
        return

    async def run() -> None:
        async with vc.AsyncClient(triton.url) as client:
            speech = client.speak_stream(text(), voice="ada")
            await anext(speech)
            waiting = asyncio.ensure_future(speech.read())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert speech.status.state == "cancelled"

    asyncio.run(asyncio.wait_for(run(), WAIT))


@both
def test_an_iterator_that_fails_in_a_later_part(triton: Server, asynchronous: bool) -> None:
    reads(triton)

    def text() -> Iterator[str]:
        yield TEXT
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        speak(triton.url, asynchronous, text())


def test_the_command_says_how_far_it_came(
    triton: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    reads(triton, lambda number, text: {"characters": 9, "finish_reason": "text_left"})
    monkeypatch.setattr(sys, "stdin", io.StringIO(TEXT))
    assert main(["--url", triton.url, "speak", "-", "--voice", "ada", "-o", str(tmp_path / "out.wav")]) == 1
    assert "character 9 of the text" in capsys.readouterr().err
