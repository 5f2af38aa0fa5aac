"""Thousands of speeches, in all forms, of a model that misses its end now and then: none is silently short.

MISSED_END_SPEECHES says how many speeches, and ONE_MISSED_OF how many of them make one missed end on average.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import FastAPI
from voice_clone_gateway import Settings, create_app
from voice_clone_gateway.families import Families
from voice_clone_gateway.http.account import Account, Item

from tests.support.doubles.speech_double import Double

pytestmark = pytest.mark.thorough

SPEECHES = int(os.environ.get("MISSED_END_SPEECHES", "600"))
ONE_OF = int(os.environ.get("ONE_MISSED_OF", "10"))
FRAME = 8  # samples of a word
AT_ONCE = 16
HOST = [(b"host", b"127.0.0.1")]
WORDS = ("one", "other", "sentence", "harbour", "lantern", "quiet", "morning", "river")

log = logging.getLogger(__name__)


async def post(app: FastAPI, path: str, fields: dict[str, Any]) -> tuple[int, dict[str, str], bytes, bool]:
    """Status, headers and body of an answer, and whether the body has an end."""
    body, sent = json.dumps(fields).encode(), []
    given = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        for message in given:
            return message
        await asyncio.Event().wait()  # the client stays

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [*HOST, (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"}
    await app(
        {**scope, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}, receive, send
    )
    start, *pieces = sent
    named = {name.decode(): value.decode() for name, value in start["headers"]}
    ended = bool(pieces) and not pieces[-1].get("more_body", False)
    return start["status"], named, b"".join(piece["body"] for piece in pieces), ended


class Connection:
    """What the gateway's protocol is for its application."""

    latest = 0.0

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def begin(self, account: Account, caller: str) -> Item:
        return account.open(caller, lambda: None)


async def talk(app: FastAPI, config: dict[str, Any], text: str) -> list[Any]:
    """All that a WebSocket session says about one utterance: dicts and bytes."""
    said: list[Any] = []
    over = asyncio.Event()
    messages = [{"type": "session.config", **config}, {"type": "input.text", "text": text}, {"type": "input.done"}]
    given = iter(
        [{"type": "websocket.connect"}, *({"type": "websocket.receive", "text": json.dumps(one)} for one in messages)]
    )

    async def receive() -> Any:
        for message in given:
            return message
        await over.wait()
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            said.append(message["bytes"] if message.get("bytes") is not None else json.loads(message["text"]))
            if isinstance(said[-1], dict) and said[-1]["type"] == "session.done":
                over.set()

    scope = {"type": "websocket", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "ws", "subprotocols": []}
    scope["state"] = {"connection": Connection()}
    path = "/v1/audio/speech/stream"
    await app({**scope, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": HOST}, receive, send)
    return said


Outcome = tuple[bool, str | None, int]
"""Whether it looks complete, the finish reason that is reported, and bytes of PCM."""


async def raw(app: FastAPI, fields: dict[str, Any]) -> Outcome:
    status, _, body, ended = await post(app, "/v1/audio/speech", fields)
    return status == 200 and ended, None, len(body)


async def file(app: FastAPI, fields: dict[str, Any]) -> Outcome:
    status, headers, body, ended = await post(app, "/v1/audio/speech", {**fields, "stream": False})
    reason = json.loads(headers["x-speech-info"])["finish_reason"] if status == 200 else None
    return status == 200 and ended, reason, len(body)


async def events(app: FastAPI, fields: dict[str, Any]) -> Outcome:
    _, _, body, _ = await post(app, "/v1/audio/speech", {**fields, "stream_format": "sse"})
    reported = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
    audio = sum(len(base64.b64decode(event["audio"])) for event in reported[:-1])
    return reported[-1]["type"] == "speech.audio.done", reported[-1].get("finish_reason"), audio


async def batch(app: FastAPI, fields: dict[str, Any]) -> Outcome:
    _, _, body, _ = await post(app, "/v1/audio/speech/batch", {"items": [fields]})
    [item] = json.loads(body)["results"]
    return item["status"] == "success", item["finish_reason"], len(base64.b64decode(item.get("audio_data", "")))


async def socket(app: FastAPI, fields: dict[str, Any], **more: Any) -> Outcome:
    config = {name: value for name, value in fields.items() if name != "input"}
    said = await talk(app, {**config, **more}, fields["input"])
    done = said[-1]
    audio = sum(len(one) for one in said if isinstance(one, bytes))
    assert done["type"] == "session.done" and ("failed" in done) == any(
        isinstance(one, dict) and one["type"] == "error" for one in said
    )
    return "failed" not in done, done["finish_reason"], audio


async def socket_files(app: FastAPI, fields: dict[str, Any]) -> Outcome:
    return await socket(app, fields, stream_audio=False)


FORMS: tuple[Callable[[FastAPI, dict[str, Any]], Awaitable[Outcome]], ...] = (
    raw,
    file,
    events,
    batch,
    socket,
    socket_files,
)


async def speak_all(app: FastAPI, double: Double, chance: random.Random) -> Counter[str]:
    counted: Counter[str] = Counter()

    async def one(number: int) -> None:
        form, allowed = FORMS[number % len(FORMS)], chance.random() < 0.2
        sentences = [
            " ".join(chance.choices(WORDS, k=chance.randint(3, 9))) + "." for _ in range(chance.choice((1, 1, 4)))
        ]
        text = " ".join(sentences)
        fields: dict[str, Any] = {"input": text, "voice": "ada", "response_format": "pcm", "allow_partial": allowed}
        if chance.random() < 0.2:
            fields["seed"] = number
        looks_whole, reason, size = await form(app, fields)
        right = size == 2 * FRAME * len(text.split())
        if looks_whole and (reason == "stop" or (reason is None and not allowed)):
            assert right, (form, fields, size)
            counted["whole"] += 1
        elif looks_whole and reason is None:
            counted["whole" if right else "short, as a raw stream may be that allows it"] += 1
        elif looks_whole:
            assert allowed and reason == "budget" and not right, (form, fields, reason)
            counted["short, told, allowed"] += 1
        else:
            assert not allowed, (form, fields)
            counted["short, told as an error"] += 1
        counted[f"{form.__name__}: {'error' if not looks_whole else 'audio'}"] += 1

    places = asyncio.Semaphore(AT_ONCE)

    async def in_place(number: int) -> None:
        async with places:
            await one(number)

    await asyncio.gather(*(in_place(number) for number in range(SPEECHES)))
    return counted


def test_none_is_silently_short() -> None:
    chance = random.Random(19)
    double = Double(frame=FRAME, misses=lambda text: chance.random() < 1 / ONE_OF)
    app = create_app(Settings(triton="127.0.0.1:1", sentence_characters=60, missed_end_retries=1))
    doubled: Any = double
    services = app.state.services = replace(
        app.state.services,
        clients=cast(Any, SimpleNamespace(of=lambda key: doubled)),
        families=Families(doubled, "", ()),
    )
    counted = asyncio.run(speak_all(app, double, chance))
    missed = sum(speech.missed for speech in double.speeches)
    name, family = "voice_clone_gateway_retried_speeches_total", {"family": "qwen3_tts"}
    retried = services.metrics.registry.get_sample_value(name, family) or 0
    log.info("%d speeches, %d pieces, %d missed ends, %d tried again", SPEECHES, len(double.speeches), missed, retried)
    for what, count in counted.most_common():
        log.info("%6d %s", count, what)
    assert counted["whole"] > SPEECHES / 2 and counted["short, told as an error"] and retried
