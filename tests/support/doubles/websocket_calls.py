"""A gateway on a real web server, in front of a client that makes known samples, and WebSocket calls to it."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import uvicorn
import websockets.asyncio.client
from voice_clone_client.long_text.plan import sentence_seed
from voice_clone_client.wav import pcm16
from voice_clone_gateway import Settings, create_app
from voice_clone_gateway.app import server_options
from voice_clone_gateway.families import Families
from voice_clone_gateway.services import Services
from voice_clone_gateway.voices.names import VoiceNames

from tests.support.doubles.speech_double import Double, samples_of
from tests.support.waiting import WAIT

CONFIG = {"type": "session.config", "voice": "ada", "seed": 7}


class Caller:
    """One connection."""

    def __init__(self, connection: websockets.asyncio.client.ClientConnection) -> None:
        self.connection = connection

    async def send(self, kind: str, **values: Any) -> None:
        await self.connection.send(json.dumps({"type": kind, **values}))

    async def configure(self, **values: Any) -> None:
        await self.connection.send(json.dumps({**CONFIG, **values}))

    async def next(self) -> Any:
        """The next message, a dict or bytes."""
        message = await asyncio.wait_for(self.connection.recv(), WAIT)
        return message if isinstance(message, bytes) else json.loads(message)

    async def until(self, kind: str) -> list[Any]:
        """All messages up to one of this type."""
        found = [await self.next()]
        while isinstance(found[-1], bytes) or found[-1]["type"] != kind:
            found.append(await self.next())
        return found


@dataclass
class Gateway:
    """A running one."""

    port: int
    double: Double
    live: Callable[[], int]
    """How many speeches have a place."""
    connections: Callable[[], int]
    """How many are open."""

    @contextlib.asynccontextmanager
    async def call(self, **options: Any) -> AsyncIterator[Caller]:
        url = f"ws://127.0.0.1:{self.port}/v1/audio/speech/stream"
        async with websockets.asyncio.client.connect(url, proxy=None, **options) as connection:
            yield Caller(connection)


def run(test: Callable[[Gateway], Awaitable[None]], double: Double | None = None, /, **settings: Any) -> None:
    """Run `test` with a gateway."""

    async def serve() -> None:
        nonlocal double
        double = double or Double()
        app = create_app(Settings(triton="127.0.0.1:1", **settings))
        services: Services = app.state.services
        options = {**server_options(services.settings), "timeout_graceful_shutdown": int(WAIT)}
        server = uvicorn.Server(uvicorn.Config(app, **options))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            doubled: Any = double
            app.state.services = replace(
                services,
                client=doubled,
                clients=cast(Any, SimpleNamespace(of=lambda key: doubled)),
                families=Families(doubled, services.settings.model, services.settings.model_aliases),
                voice_names=VoiceNames(doubled, services.settings.default_voice),
            )
            shown = asyncio.get_running_loop().call_later(5 * WAIT - 5, show_all)
            port, open_ones = listener.getsockname()[1], server.server_state.connections
            gateway = Gateway(port, double, lambda: services.gate.live, lambda: len(open_ones))
            try:
                await asyncio.wait_for(test(gateway), 5 * WAIT)
            finally:
                shown.cancel()
                server.should_exit = True
                await serving
        assert services.gate.live == 0
        assert all(one.closed.is_set() for one in double.speeches)

    asyncio.run(serve())


def show_all() -> None:
    """Print where each thread and task is: what a test that hangs waits for."""
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback(sys.__stderr__)
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.__stderr__)


def audio_of(messages: list[Any]) -> bytes:
    return b"".join(message for message in messages if isinstance(message, bytes))


def events_of(messages: list[Any]) -> list[dict[str, Any]]:
    return [message for message in messages if isinstance(message, dict)]


def pcm_of(text: str, index: int, seed: int | None = 7) -> bytes:
    return pcm16(samples_of(text, sentence_seed(seed, index)))


async def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.01)
