"""Makes requests that delay the gateway's other callers or cost its memory, and repeats them without end.

It runs as a process of its own: `python -m perf.bench.attacks URL KEY COUNT KIND ...`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

import httpx2
import websockets
from websockets.asyncio.client import ClientConnection, connect

from voice_clone_server.triton_server import ROOT

CLIP = ROOT / "tools" / "data" / "reference.wav"
LONG = "The old captain sold his boat. My sister wants a new car. The teacher opened the window. " * 3
SPEECH, VOICES, LIVE = "/v1/audio/speech", "/v1/audio/voices", "/v1/audio/speech/stream"
JOBS = "/v1/audio/jobs"
UTTERANCES = 8  # that a WebSocket may have waiting
FRAME_BYTES = 8 << 20  # that an unfinished frame says it has
WAIT = 300.0
REFUSED_PAUSE = 0.05  # seconds until one that was refused asks again


@dataclass
class Attacker:
    """One key at a gateway, with a client that keeps its connections."""

    url: str
    key: str
    http: httpx2.AsyncClient

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def live(self) -> connect:
        """Return a WebSocket that is to be opened."""
        url = self.url.replace("http", "ws", 1) + LIVE
        return connect(url, additional_headers=self.headers, proxy=None, ping_interval=None, max_size=None)

    async def opened(self, head: str, buffer: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection that has sent most of a request's head and buffers so many bytes of an answer."""
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        raw.setblocking(False)
        there = urlsplit(self.url)
        await asyncio.get_running_loop().sock_connect(raw, (there.hostname, there.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=buffer)
        writer.write(f"{head} HTTP/1.1\r\nHost: {there.netloc}\r\nAuthorization: Bearer {self.key}\r\n".encode())
        return reader, writer


Attack = Callable[[Attacker, int], Awaitable[bool]]
"""Takes a number, and returns whether the attack was served."""


@cache
def _clip() -> bytes:
    return CLIP.read_bytes()


async def _streams(attacker: Attacker, number: int) -> bool:
    order = {"input": LONG, "voice": "other", "response_format": "pcm"}
    return (await attacker.http.post(SPEECH, json=order)).is_success


async def _batches(attacker: Attacker, number: int) -> bool:
    items = [{"input": LONG} for _ in range(32)]
    return (await attacker.http.post(f"{SPEECH}/batch", json={"voice": "other", "items": items})).is_success


async def _jobs(attacker: Attacker, number: int) -> bool:
    """A job of 100 texts that no job had before."""
    texts = (f"{LONG} This is number {int.from_bytes(os.urandom(3), 'big')}." for _ in range(100))
    made = await attacker.http.post(JOBS, json={"input": "\n\n".join(texts), "voice": "other"})
    status = made.json().get("status")
    while status in ("queued", "in_progress"):
        await asyncio.sleep(1.0)
        status = (await attacker.http.get(made.headers["location"])).json()["status"]
    return bool(status == "completed")


async def _clips(attacker: Attacker, number: int) -> bool:
    audio = "data:audio/wav;base64," + base64.b64encode(_clip()).decode()
    order = {"input": "Hello.", "reference_audio": audio, "cache": False, "max_frames": 1, "response_format": "pcm"}
    return (await attacker.http.post(SPEECH, json={**order, "allow_partial": True})).is_success


async def _upload(attacker: Attacker, name: str, clip: bytes) -> bool:
    form = {"name": name, "consent": "ours", "replace": "true"}
    return (await attacker.http.post(VOICES, data=form, files={"audio_sample": clip})).is_success


async def _uploads(attacker: Attacker, number: int) -> bool:
    return await _upload(attacker, f"v{number}", _clip())


async def _broken(attacker: Attacker, number: int) -> bool:
    return await _upload(attacker, f"b{number}", b"\0\0\0\x18ftypM4A \0\0\0\0M4A mp42" + os.urandom(376))


async def _exports(attacker: Attacker, number: int) -> bool:
    return (await attacker.http.get("/v1/audio/bundle")).is_success


async def _detections(attacker: Attacker, number: int) -> bool:
    return (await attacker.http.post("/v1/audio/detect", files={"file": _clip()})).is_success


async def _lists(attacker: Attacker, number: int) -> bool:
    return (await attacker.http.get(VOICES)).is_success


async def _health(attacker: Attacker, number: int) -> bool:
    return (await attacker.http.get("/health")).is_success


async def _sockets(attacker: Attacker, number: int) -> bool:
    async with attacker.live() as live:
        await _configure(live)
        for _ in range(UTTERANCES):
            await _send(live, "input.text", text=LONG)
            await _send(live, "input.done")
        done = 0
        async for message in live:
            kind = "" if isinstance(message, bytes) else json.loads(message)["type"]
            done += kind in ("session.done", "error")
            if done == UTTERANCES:
                return True
    return False


async def _token_sockets(attacker: Attacker, number: int) -> bool:
    """Send texts that go on, a word a second; each takes a slot of the model and hardly uses it."""
    async with attacker.live() as live:
        await _configure(live, streaming_mode="token_level")
        reading = asyncio.create_task(_read(live))
        for word in LONG.split():
            await _send(live, "input.text", text=f"{word} ")
            await asyncio.sleep(1.0)
        reading.cancel()
    return True


async def _pings(attacker: Attacker, number: int) -> bool:
    async with attacker.live() as live:
        while True:
            await live.ping()
            await asyncio.sleep(0)


async def _slow_readers(attacker: Attacker, number: int) -> bool:
    """Ask for speeches, and read hardly anything of them."""
    order = json.dumps({"input": LONG, "voice": "other", "response_format": "pcm"}).encode()
    reader, writer = await attacker.opened(f"POST {SPEECH}", 2048)
    try:
        writer.write(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(order) + order)
        while await reader.read(64):
            await asyncio.sleep(0.1)
    finally:
        writer.close()
    return True


async def _frames(attacker: Attacker, number: int) -> bool:
    """Send WebSocket frames that do not end."""
    reader, writer = await attacker.opened(f"GET {LIVE}", 2048)
    try:
        key = base64.b64encode(os.urandom(16)).decode()
        upgrade = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}"
        writer.write(f"{upgrade}\r\n\r\n".encode())
        if b" 101 " not in await reader.readuntil(b"\r\n\r\n"):
            return False
        writer.write(struct.pack("!BBQ", 0x81, 0x80 | 127, FRAME_BYTES) + bytes(4))  # a text frame, masked with zeros
        for _ in range(FRAME_BYTES // 65536 - 1):
            writer.write(b" " * 65536)
            await writer.drain()
            await asyncio.sleep(0.1)
        await reader.read()  # until the gateway closes it
    finally:
        writer.close()
    return True


async def _configure(live: ClientConnection, **more: str) -> None:
    await _send(live, "session.config", voice="other", response_format="pcm", **more)


async def _send(live: ClientConnection, kind: str, **values: str) -> None:
    await live.send(json.dumps({"type": kind, **values}))


async def _read(live: ClientConnection) -> None:
    async for _ in live:
        pass


ATTACKS: dict[str, Attack] = {
    "streams": _streams,
    "batches": _batches,
    "jobs": _jobs,
    "sockets": _sockets,
    "token sockets": _token_sockets,
    "slow readers": _slow_readers,
    "cold clips": _clips,
    "uploads": _uploads,
    "broken m4a": _broken,
    "exports": _exports,
    "detections": _detections,
    "lists": _lists,
    "health": _health,
    "pings": _pings,
    "frames": _frames,
}


async def attack(url: str, key: str, count: int, kinds: Sequence[str]) -> None:
    """Keep so many requests of each kind open, without end."""

    async def again(attacker: Attacker, kind: str, number: int) -> None:
        while True:
            served = False
            with suppress(httpx2.HTTPError, websockets.WebSocketException, OSError, EOFError):
                served = await ATTACKS[kind](attacker, number)
            if not served:
                await asyncio.sleep(REFUSED_PAUSE)

    limits = httpx2.Limits(max_connections=count * len(kinds))
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=WAIT, limits=limits) as http:
        attacker = Attacker(url, key, http)
        await asyncio.gather(*(again(attacker, kind, number) for kind in kinds for number in range(count)))


if __name__ == "__main__":
    _, given_url, given_key, given_count, *given_kinds = sys.argv
    asyncio.run(attack(given_url, given_key, int(given_count), given_kinds))
