"""Plain calls of other vendors' protocols to a gateway of `websocket_calls`, and a way to it by TLS."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trustme
import websockets.asyncio.client
from websockets.exceptions import ConnectionClosed

from tests.support.doubles.websocket_calls import Gateway
from tests.support.waiting import WAIT


class VendorCaller:
    """One connection."""

    def __init__(self, connection: websockets.asyncio.client.ClientConnection) -> None:
        self.connection = connection

    async def send(self, **message: Any) -> None:
        await self.connection.send(json.dumps(message))

    async def next(self) -> Any:
        """The next message: bytes, or a dict."""
        message = await asyncio.wait_for(self.connection.recv(), WAIT)
        return message if isinstance(message, bytes) else json.loads(message)

    async def until(self, **fields: Any) -> list[Any]:
        """All messages up to one with these fields."""
        found = [await self.next()]
        while isinstance(found[-1], bytes) or not fields.items() <= found[-1].items():
            found.append(await self.next())
        return found

    async def rest(self) -> tuple[list[Any], int]:
        """All messages that still come, and the code with which the connection is closed."""
        found = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                found.append(await self.next())
        code = self.connection.close_code
        assert code is not None
        return found, code


@contextlib.asynccontextmanager
async def calling(gateway: Gateway, path: str, **options: Any) -> AsyncIterator[VendorCaller]:
    """A connection to a path of the gateway."""
    url = f"ws://127.0.0.1:{gateway.port}{path}"
    async with websockets.asyncio.client.connect(url, proxy=None, **options) as connection:
        yield VendorCaller(connection)


def audio_of(messages: list[dict[str, Any]], context: str | None = None) -> bytes:
    """The audio of ElevenLabs' messages, of one context or of all."""
    chosen = [message for message in messages if context is None or message.get("contextId") == context]
    return b"".join(base64.b64decode(message["audio"]) for message in chosen if message.get("audio"))


@contextlib.asynccontextmanager
async def by_tls(port: int, folder: Path) -> AsyncIterator[tuple[int, Path]]:
    """A port that leads to the gateway by TLS, and the authority of its certificate."""
    authority = trustme.CA()
    certificate = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    # No session tickets: the blocking client of websockets reads them in one thread while another writes its request,
    # and OpenSSL, which allows one thread at a time, then sometimes loses the request.
    context.num_tickets = 0

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1], certificate
