"""The WebSocket in front of the real server: audio while text is written, barge-in, the audio of single requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import numpy as np
import pytest
from voice_clone_client import AsyncClient, Client
from voice_clone_client.long_text.plan import sentence_seed
from voice_clone_client.wav import pcm16
from websockets.sync.client import ClientConnection, connect

from perf.bench.gateway_process import Gateway
from tests.support.servers.server_metrics import ended_streams, metric
from tests.support.waiting import WAIT, until
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.share("servers")

PIECES = ["The ship came in at d", "awn. Dr. Grey saw it fir", "st, from the hill. And then"]
LONG = "A very long story begins here. " * 40  # a sentence takes half a second
SENTENCES = ["The ship came in at dawn.", "Dr. Grey saw it first, from the hill.", "And then the bells rang."]


def say(connection: ClientConnection, kind: str, **values: Any) -> None:
    connection.send(json.dumps({"type": kind, **values}))


def messages_until(connection: ClientConnection, kind: str) -> tuple[list[dict[str, Any]], bytes]:
    """The messages up to one of this type, and the audio among them."""
    messages: list[dict[str, Any]] = []
    audio = b""
    while not messages or messages[-1]["type"] != kind:
        message = connection.recv(60)
        if isinstance(message, bytes):
            audio += message
        else:
            messages.append(json.loads(message))
            assert messages[-1]["type"] != "error" or kind == "error", messages[-1]
    return messages, audio


@contextmanager
def session(gateway: Gateway, voice: str, **config: Any) -> Iterator[ClientConnection]:
    url = gateway.url.replace("http", "ws", 1) + "/v1/audio/speech/stream"
    with connect(url, proxy=None, open_timeout=WAIT) as connection:
        say(connection, "session.config", voice=voice, **config)
        yield connection


def assert_same(heard: bytes, expected: bytes) -> None:
    """Equal but for the rounding of samples that the server computed in other batches."""
    assert len(heard) == len(expected)
    difference = np.frombuffer(heard, "<i2").astype(np.int32) - np.frombuffer(expected, "<i2")
    assert abs(difference).max() <= 1


def test_audio_comes_while_the_text_is_still_written(gateway: Gateway, voice: str, client: Client) -> None:
    with session(gateway, voice, seed=11, max_new_tokens=12) as connection:
        heard = b""
        for index, piece in enumerate(PIECES):
            say(connection, "input.text", text=piece)
            if index > 0:  # the sentence before is complete: it is spoken though the text has not ended
                messages, audio = messages_until(connection, "audio.done")
                assert messages[0]["sentence_text"] == SENTENCES[index - 1]
                heard += audio
        say(connection, "input.text", text=" the bells rang.")
        say(connection, "input.done")
        messages, audio = messages_until(connection, "session.done")
        heard += audio
    assert messages[-1]["total_sentences"] == 3
    assert messages[-1]["milliseconds"] == len(heard) // 48
    single = [
        client.speak(text, voice=voice, seed=sentence_seed(11, index), max_frames=12).read()[0]
        for index, text in enumerate(SENTENCES)
    ]
    assert_same(heard, pcm16(np.concatenate(single)))


def test_a_cancel_frees_the_slot(gateway: Gateway, voice: str, server: TritonServer) -> None:
    until(lambda: metric(server, "talker_live_streams") == 0)
    with session(gateway, voice, seed=3, max_new_tokens=2000, allow_partial=True) as connection:
        say(connection, "input.text", text=LONG)
        while not isinstance(connection.recv(60), bytes):
            pass  # a slot is taken before there is anything to hear
        say(connection, "cancel")
        messages, _ = messages_until(connection, "session.cancelled")
        assert messages[-1]["milliseconds"] > 0
        until(lambda: metric(server, "talker_live_streams") == 0)
        say(connection, "input.text", text="What did you want to say?")
        say(connection, "input.done")
        messages, audio = messages_until(connection, "session.done")
        assert messages[-1]["utterance_index"] == 1
        assert len(audio) >= 2 * 1920


def test_a_client_that_leaves_frees_the_slot(gateway: Gateway, voice: str, server: TritonServer) -> None:
    def leaves_in_mid_speech() -> bool:
        """Whether a stream was cancelled; a client that is held up for a moment leaves after all of them."""
        before = ended_streams(server)["cancelled"]
        with session(gateway, voice, seed=3, max_new_tokens=2000, allow_partial=True) as connection:
            say(connection, "input.text", text=LONG)
            messages_until(connection, "audio.start")
        until(lambda: metric(server, "talker_live_streams") == 0)
        return ended_streams(server)["cancelled"] > before

    until(leaves_in_mid_speech)


def test_two_sessions_at_once(gateway: Gateway, voice: str, client: Client) -> None:
    def speak(seed: int) -> bytes:
        with session(gateway, voice, seed=seed, max_new_tokens=10) as connection:
            for word in ["One", "thing", "was", "said.", "Another", "thing", "was", "heard."]:
                say(connection, "input.text", text=word + " ")
            say(connection, "input.done")
            return messages_until(connection, "session.done")[1]

    with ThreadPoolExecutor(2) as pool:
        audio = list(pool.map(speak, (1, 2)))
    for seed, heard in zip((1, 2), audio, strict=True):
        single = [
            client.speak(text, voice=voice, seed=sentence_seed(seed, index), max_frames=10).read()[0]
            for index, text in enumerate(["One thing was said.", "Another thing was heard."])
        ]
        assert_same(heard, pcm16(np.concatenate(single)))


def test_errors_of_the_server(gateway: Gateway, voice: str) -> None:
    with session(gateway, "Nobody") as connection:
        say(connection, "input.text", text="Who speaks?")
        say(connection, "input.done")
        messages, audio = messages_until(connection, "error")
        assert messages[-1]["error"]["code"] == "voice_not_found"
        assert audio == b"" and messages[-1]["partial_audio"] is False
        assert json.loads(connection.recv(60))["failed"] is True
        say(connection, "session.config", voice=voice, max_new_tokens=5)
        say(connection, "input.text", text="I do.")
        say(connection, "input.done")
        assert messages_until(connection, "session.done")[1]


def test_a_long_text_is_the_same_everywhere(
    gateway: Gateway, voice: str, http: httpx2.Client, client: Client, server: TritonServer
) -> None:
    text = " ".join(f"Sentence number {index} of a long text, read aloud in one voice." for index in range(100, 107))
    asked = {"input": text, "voice": voice, "seed": 5, "max_new_tokens": 6, "response_format": "pcm"}
    answer = http.post("/v1/audio/speech", json=asked)
    assert answer.status_code == 200, answer.text
    with session(gateway, voice, seed=5, max_new_tokens=6) as connection:
        say(connection, "input.text", text=text)
        say(connection, "input.done")
        messages, audio = messages_until(connection, "session.done")
    assert messages[-1]["total_sentences"] == 7
    assert_same(answer.content, audio)
    samples, _ = client.speak_long(text, voice=voice, seed=5, max_frames=6).read()
    assert_same(answer.content, pcm16(samples))

    async def by_asyncio() -> Any:
        async with AsyncClient(server.url) as speaker:
            return await speaker.speak_long(text, voice=voice, seed=5, max_frames=6).read()

    assert_same(answer.content, pcm16(asyncio.run(by_asyncio())[0]))


def test_a_text_goes_to_the_model_as_it_is_written(gateway: Gateway, voice: str, client: Client) -> None:
    """In one piece, of as many frames as the whole text has; and a new piece behind a flush."""
    text = "The ship came in at dawn. Dr. Grey saw it first, from the hill."
    config = {"streaming_mode": "token_level", "x_vector_only": True, "seed": 11, "max_new_tokens": 40}
    with session(gateway, voice, **config) as connection:
        for begin in range(0, len(text), 4):
            say(connection, "input.text", text=text[begin : begin + 4])
        say(connection, "input.flush")
        first, heard = messages_until(connection, "audio.done")
        say(connection, "input.text", text=" And then the bells rang.")
        say(connection, "input.done")
        rest, more = messages_until(connection, "session.done")
    whole = client.speak(text, voice=voice, seed=11, max_frames=40, x_vector_only=True).read()[0]
    assert_same(heard, pcm16(whole))
    assert first[-1]["info"]["characters"] == len(text)
    assert [message["sentence_index"] for message in [*first, *rest] if message["type"] == "audio.start"] == [0, 1]
    assert rest[-1]["total_sentences"] == 2 and len(more) > 0
