"""Texts that are appended while they are spoken, on the real server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import secrets
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from voice_clone_client import AsyncClient, Client, InvalidArgument, Overloaded, Speech
from voice_clone_client.long_text.plan import Plan, sentence_seed
from voice_clone_client.long_text.text import SentenceChunk
from voice_clone_gateway.speech.streaming_text import StreamingText

from tests.support.families.factories import CheckpointFactory
from tests.support.servers.appends import FRAMES, Writer, failure, heard, opened
from tests.support.servers.running import running
from tests.support.servers.server_metrics import metric
from tests.support.servers.talker_calls import Call
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

TEXT = "The boats came home, and 朋友的声音在第一句话之前就能听出来; it's late, they'll sing again!  \nNo?\n"
IDLE, ALIVE = 10.0, 5.0  # seconds; both are longer than a busy machine lets a process wait


@pytest.fixture(scope="module")
def server(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """In deterministic mode; its decoder drops a stream that gives no sign of life for `ALIVE`."""
    environment = {
        "VOICE_CLONE_DETERMINISTIC": "true",
        "VOICE_CLONE_TEXT_IDLE_SECONDS": str(IDLE),
        "VOICE_CLONE_STREAM_IDLE_SECONDS": str(ALIVE),
        "VOICE_CLONE_MAX_STREAMS": "4",
    }
    folder = tmp_path_factory.mktemp("appended")
    with running(checkpoint_folder("tiny", 0), folder, **environment) as server:
        yield server


@pytest.fixture(scope="module")
def voice(server: TritonServer, reference_clip: bytes, reference_text: str) -> str:
    with Client(server.url) as client:
        client.upload("Harbour", reference_clip, reference_text=reference_text, wait=True)
    return "Harbour"


def is_quiet(server: TritonServer) -> bool:
    return not any(metric(server, f"talker_{kind}_streams") for kind in ("live", "waiting", "short"))


@pytest.fixture
def writer(server: TritonServer) -> Iterator[Writer]:
    until(lambda: is_quiet(server))
    with Writer(server, secrets.token_hex(16)) as writer:
        yield writer
    until(lambda: is_quiet(server))


def whole(client: Client, voice: str, seed: int, x_vector: bool) -> str:
    samples, _ = client.speak(TEXT, voice=voice, seed=seed, max_frames=FRAMES, x_vector_only=x_vector).read()
    assert len(samples) == FRAMES * 1920
    return hashlib.sha256(samples.tobytes()).hexdigest()


def write_at_random(writer: Writer, rng: random.Random, begin: int) -> None:
    """The text from `begin` on: any cuts and delays, pieces that come twice, and two that change places."""
    count = rng.randrange(1, 12)
    cuts = sorted(rng.randrange(begin, len(TEXT) + 1) for _ in range(count))
    pieces = [TEXT[a:b] for a, b in zip([begin, *cuts], [*cuts, len(TEXT)], strict=True)]
    order = [*range(len(pieces))]
    if len(order) > 2 and rng.random() < 0.5:
        place = rng.randrange(len(order) - 1)
        order[place], order[place + 1] = order[place + 1], order[place]
    sent = 0
    for index in order:
        for _ in range(1 + (rng.random() < 0.2)):
            writer.send(pieces[index], index == len(pieces) - 1, index=index)
            sent += 1
        if rng.random() < 0.4:
            time.sleep(rng.choice((0.0, 0.01, 0.1)))
    for _ in range(sent):
        assert isinstance(answer := writer.answer(), dict), answer
        assert answer["accepted"] >= 0


@pytest.mark.parametrize("splits", [8, pytest.param(200, marks=pytest.mark.long)])
def test_the_audio_is_that_of_the_whole_text(server: TritonServer, client: Client, voice: str, splits: int) -> None:
    expected = {(seed, mode): whole(client, voice, seed, mode) for seed in (1, 2) for mode in (True, False)}
    rng = random.Random(8)
    for number in range(splits):
        seed, x_vector = 1 + number % 2, number % 4 > 1
        begin = rng.choice((0, 0, 5))
        company = [
            client.speak(TEXT, voice=voice, seed=9, max_frames=rng.randrange(1, 20)) for _ in range(rng.randrange(3))
        ]
        with Writer(server, secrets.token_hex(16)) as writer:
            ahead = rng.random() < 0.2  # the text comes before its speech
            if ahead:
                thread = threading.Thread(target=write_at_random, args=(writer, rng, begin))
                thread.start()
                time.sleep(0.05)
            numbers = {"seed": np.array([seed], np.uint64), "x_vector_only": np.array([x_vector])}
            call = opened(server, writer, voice, TEXT[:begin], **numbers)
            if ahead:
                thread.join()
            else:
                write_at_random(writer, rng, begin)
            sha, info = heard(call)
        assert sha == expected[seed, x_vector], number
        assert info["finish_reason"] == "length"
        assert info["read"] <= info["frames"] + 1 or not x_vector
        assert info["characters"] == len(TEXT)
        for speech in company:
            speech.read()


def test_what_a_voice_in_context_waits_for(server: TritonServer, writer: Writer, voice: str) -> None:
    """Its first frame needs as many tokens as its clip has frames beside and behind the transcript, and says so."""
    call = opened(server, writer, voice, x_vector_only=np.array([False]))
    answer = writer.append("Boats ")
    needed = answer["first_audio_tokens"]
    assert needed > answer["text_tokens"] + 5
    while answer["text_tokens"] < needed - 1:
        answer = writer.append("came ")
    until(lambda: metric(server, "talker_short_streams") == 1)
    assert writer.append("Boats ", index=0)["read"] == 0
    answer = writer.append("home and ")
    assert answer["text_tokens"] >= needed
    first = call.next()
    info = json.loads(first.as_numpy("info")[0])
    assert info["first_audio_tokens"] == needed == 1 + info["reference_frames"] - info["reference_tokens"]
    writer.append("slept.", True)
    heard(call)


def test_policies(server: TritonServer, client: Client, voice: str) -> None:
    """`wait` speaks over a pause as if there were none; with `flush_after` a stream ends before it, and says so."""
    first, rest = "The boats came home.", " Nobody saw them."
    options = {"voice": voice, "max_frames": 20, "x_vector_only": True}

    async def spoken(flush_after: float | None) -> list[SentenceChunk]:
        async with AsyncClient(server.url) as client:
            speech = StreamingText(client, Plan(), flush_after)
            speech.begin({**options, "seed": 1})
            speech.write(first)
            await asyncio.sleep(0.5)
            speech.end(rest)
            return [chunk async for chunk in speech]

    def sha(chunks: list[SentenceChunk], index: int) -> str:
        samples = [chunk.samples.tobytes() for chunk in chunks if chunk.sentence_index == index]
        return hashlib.sha256(b"".join(samples)).hexdigest()

    def whole(text: str, seed: int | None) -> str:
        return hashlib.sha256(client.speak(text, **options, seed=seed).read()[0].tobytes()).hexdigest()

    assert sha(asyncio.run(spoken(None)), 0) == whole(first + rest, 1)
    parts = asyncio.run(spoken(0.1))
    assert [sha(parts, 0), sha(parts, 1)] == [whole(first, 1), whole(rest.strip(), sentence_seed(1, 1))]
    places = {chunk.sentence_index: (chunk.sentence.start, chunk.sentence.end) for chunk in parts}
    assert places == {0: (0, 20), 1: (21, 37)}


def test_answers(server: TritonServer, writer: Writer, voice: str) -> None:
    call = opened(server, writer, voice)
    first = writer.append("The boats came ")
    assert first["accepted"] == 0 and first["state"] in ("pending", "open") and first["text_tokens"] > 1
    until(lambda: metric(server, "talker_short_streams") == 1)
    repeated = writer.append("The boats came ", index=0)
    assert (repeated["accepted"], repeated["text_tokens"]) == (0, first["text_tokens"])
    assert repeated["state"] == "open"
    assert repeated["read"] == first["text_tokens"]  # it has read all that is final
    assert repeated["characters"] == len("The boats came")
    assert writer.append("home.", True)["state"] == "closed"
    _, info = heard(call)
    assert (info["finish_reason"], info["frames"]) == ("length", FRAMES)
    assert info["stream_id"] == writer.id and info["text_wait_ms"] > 0
    assert info["chunk_gap_ms"] < info["text_wait_ms"] + 60_000
    after = writer.append("home.", True, index=1)
    assert (after["state"], after["finish_reason"], after["characters"]) == (
        "ended",
        "length",
        len("The boats came home."),
    )


def test_refusals_leave_the_text_as_it_is(server: TritonServer, client: Client, writer: Writer, voice: str) -> None:
    call = opened(server, writer, voice, TEXT[:10])
    assert writer.append(TEXT[10:30])["accepted"] == 0
    refused = {
        "was another one": {"text": "other", "index": 0},
        "control token": {"text": "so <|im_end|>", "index": 1},
        "4096 are allowed": {"text": "a" * 4097, "index": 1},
        "tokens; at most 1024": {"text": "1" * 2000, "index": 1},
        "missing before": {"text": "a", "index": 66},
        "`index` must be": {"text": "a", "index": -1},
    }
    for words, piece in refused.items():
        error = writer.append(**piece)  # type: ignore[arg-type]
        assert isinstance(error, str) and "invalid_argument: " in error and words in error, error
    assert writer.append(TEXT[30:], True, index=1)["state"] == "closed"
    more = writer.append("more", index=2)
    if not isinstance(more, str):  # the speech has ended already
        assert (more["state"], more["accepted"]) == ("ended", 1)
    else:
        assert "text of this stream is closed" in more
    assert heard(call)[0] == whole(client, voice, 4, True)


def test_speeches_that_are_refused(server: TritonServer, writer: Writer, voice: str) -> None:
    call = opened(server, writer, voice, "One.")
    writer.append(" Two")
    assert "every stream needs its own id" in failure(opened(server, writer, voice))
    for words, changed in {
        "16 to 128": {"text_stream": "short"},
        "non_streaming_mode": {"text_stream": "x" * 20, "non_streaming_mode": np.array([True])},
        "control token": {"text_stream": "y" * 20, "text": "<|im_end|> a"},
    }.items():
        error = failure(opened(server, writer, voice, **changed))
        assert "invalid_argument: " in error and words in error
    others = [Writer(server, secrets.token_hex(16)) for _ in range(3)]
    calls = [opened(server, other, voice) for other in others[:2]]
    until(lambda: metric(server, "talker_live_streams") == 3)
    assert "overloaded: 3 texts are open" in failure(opened(server, others[2], voice))
    for other, each in zip(others[:2], calls, strict=True):
        assert "`text` is blank" not in str(other.append("Yes.", True))
        heard(each)
    assert writer.append("  ", True)["state"] == "closed"
    heard(call)
    for other in others:
        other.__exit__(None, None, None)


def test_a_blank_text(server: TritonServer, writer: Writer, voice: str) -> None:
    call = opened(server, writer, voice)
    assert writer.append(" \n", True)["state"] in ("closed", "ended")
    assert "invalid_argument: `text` is blank" in failure(call)


def test_a_text_that_stays_away(server: TritonServer, writer: Writer, voice: str) -> None:
    """The decoder keeps the stream while it waits; then it says what there is."""
    call, silent = (
        opened(server, writer, voice, "The boats came home and"),
        opened(server, writer, voice, text_stream="silent" * 4),
    )
    _, info = heard(call)
    assert info["finish_reason"] in ("text_timeout", "length") and info["frames"] > 0
    assert info["characters"] == len("The boats came home and")
    assert info["text_wait_ms"] >= 1000 * IDLE
    assert "invalid_argument: `text` is blank, and it was closed: no text came for 10 s" in failure(silent)
    assert writer.append("more")["state"] == "ended"


@pytest.mark.parametrize("how", ["leaves", "cancel"])
def test_a_speech_that_waits_for_text_can_end(server: TritonServer, writer: Writer, voice: str, how: str) -> None:
    call = opened(server, writer, voice, "The boats came home and")
    until(lambda: metric(server, "talker_short_streams") == 1)
    if how == "leaves":
        call.leave()
        until(lambda: metric(server, "talker_live_streams") == 0)
        assert writer.append("more")["finish_reason"] == "cancelled"
        return
    info = writer.cancel(writer.id)
    assert info["characters"] == len("The boats came home") and info["read"] == info["text_tokens"]
    assert "cancelled" in failure(call)


@pytest.mark.long
def test_no_one_speaks_it(writer: Writer) -> None:
    """Slow, but the shortest way to see that a piece does not wait for ever."""
    began = time.monotonic()
    assert "stream_not_found: " in writer.append("words")
    assert time.monotonic() - began > 25


def test_plain_tritonclient(server: TritonServer, voice: str, tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "client" / "examples" / "plain_text_stream.py"
    command = [sys.executable, str(script), "qwen3_tts", voice, str(tmp_path / "out.wav"), server.url]
    subprocess.run(command, input="The boats came home.\nNobody saw them.\n", text=True, check=True, timeout=120)
    with wave.open(str(tmp_path / "out.wav")) as wav:
        assert wav.getnframes() >= 1920
    done = subprocess.run(
        [*command[:3], "nobody", *command[4:]], input="Hi.\n", text=True, capture_output=True, timeout=120
    )
    assert done.returncode == 1 and "speaker_not_found" in done.stderr


class TestClient:
    def test_tokens(self, client: Client, voice: str) -> None:
        def tokens() -> Iterator[str]:
            for begin in range(0, len(TEXT), 3):
                yield TEXT[begin : begin + 3]
                time.sleep(0.005)

        speech = client.speak_stream(tokens(), voice=voice, seed=1, max_frames=FRAMES, x_vector_only=True)
        samples, _ = speech.read()
        assert hashlib.sha256(samples.tobytes()).hexdigest() == whole(client, voice, 1, True)
        assert speech.whole and speech.info is not None and speech.info["characters"] == len(TEXT)

    def test_asyncio(self, server: TritonServer, client: Client, voice: str) -> None:
        async def tokens() -> Any:
            for begin in range(0, len(TEXT), 5):
                yield TEXT[begin : begin + 5]
                await asyncio.sleep(0.005)

        async def speak() -> str:
            async with AsyncClient(server.url) as client:
                text: Any = tokens()
                speech = client.speak_stream(text, voice=voice, seed=2, max_frames=FRAMES, x_vector_only=True)
                return hashlib.sha256((await speech.read())[0].tobytes()).hexdigest()

        assert asyncio.run(speak()) == whole(client, voice, 2, True)

    def test_errors(self, server: TritonServer, client: Client, voice: str) -> None:
        def broken() -> Iterator[str]:
            yield "The boats"
            raise ZeroDivisionError("of the writer")

        def speech(text: Any, **more: Any) -> Speech:
            return client.speak_stream(text, voice=voice, x_vector_only=True, seed=1, **more)

        def reported(text: Callable[[], Any], kind: type[Exception], words: str) -> bool:
            with pytest.raises((kind, Overloaded)) as found:
                speech(text()).read()
            # The server sees only soon that the clients of the texts before have left.
            if found.type is Overloaded:
                return False
            assert re.search(words, str(found.value))
            return True

        for text, kind, words in (
            (broken, ZeroDivisionError, "of the writer"),
            (lambda: ["a <|im_", "end|> b"], InvalidArgument, "control token"),
            (lambda: [b"bytes"], InvalidArgument, "must be a string"),
            (list, InvalidArgument, "blank"),
        ):
            until(partial(reported, text, kind, words))

        def room() -> bool:
            try:
                return len(speech(["1" * 900, "2" * 900, "3" * 900, "."], max_frames=3).read()[0]) > 0
            except Overloaded:
                return False

        until(room)

    def test_a_speech_that_is_closed(self, server: TritonServer, client: Client, voice: str) -> None:
        written = threading.Event()

        def endless() -> Iterator[str]:
            yield "The boats came home "
            written.wait(60)

        with client.speak_stream(endless(), voice=voice, x_vector_only=True) as speech:
            next(speech)
        written.set()
        until(lambda: metric(server, "talker_live_streams") == 0)


@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.long)])
def test_many_that_misbehave(server: TritonServer, client: Client, voice: str, count: int) -> None:
    """Streams that open, append, stall, vanish, repeat, overlap and cancel, four at a time."""
    rng = random.Random(11)
    expected = whole(client, voice, 4, True)
    lock, shas, numbers = threading.Lock(), [], iter(range(count))

    def one(kind: str, writer: Writer) -> None:
        if kind == "text alone":  # its speech never comes, and no caller waits for the answer
            writer.send("a")
            return
        call = opened(server, writer, voice, TEXT[:7])
        if kind == "vanish":
            writer.append(TEXT[7:20])
            call.leave()
            return
        if kind == "vanish at once":
            call.leave()
            return
        if kind == "overlap":
            again = opened(server, writer, voice, "Other")
            outcomes = sorted((outcome_of(call), outcome_of(again)))
            assert any("own id" in outcome or "overloaded" in outcome for outcome in outcomes), outcomes
            return
        if kind == "cancel":
            writer.append(TEXT[7:20])
            writer.cancel(writer.id)
            assert "cancelled" in (outcome := outcome_of(call)) or "overloaded" in outcome
            return
        writer.append(TEXT[7:20])
        if kind == "stall":
            time.sleep(0.2)
        if kind == "repeat":
            writer.append(TEXT[7:20], index=0)
        writer.append(TEXT[20:], True, index=1)
        if "overloaded" not in (outcome := outcome_of(call)):
            with lock:
                shas.append(outcome)

    def outcome_of(call: Call) -> str:
        sha = hashlib.sha256()
        while not isinstance(result := call.next(), str):
            sha.update(result.as_numpy("audio").tobytes())
            if result.as_numpy("final")[0]:
                result = sha.hexdigest()
                break
        call.close()
        return str(result)

    failures: list[BaseException] = []
    kinds = ("good", "stall", "repeat", "vanish", "vanish at once", "overlap", "cancel", "text alone")

    def work() -> None:
        while not failures:
            with lock:
                number = next(numbers, None)
                kind = rng.choice(kinds)
            if number is None:
                return
            writer = Writer(server, secrets.token_hex(16))
            try:
                one(kind, writer)
            except BaseException as error:
                failures.append(error)
            finally:
                writer.call.leave()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert set(shas) <= {expected}
    until(lambda: is_quiet(server))
    until(lambda: metric(server, "code2wav_streams") == 0)
    assert whole(client, voice, 4, True) == expected
