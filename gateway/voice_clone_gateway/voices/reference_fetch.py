"""Reference audio of a request: a data URL, or a URL from which it is fetched.

A URL makes the gateway a client on behalf of an untrusted caller: see `http.outgoing`. Each redirect is treated like a
new URL; size, time and type are bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import SplitResult, urljoin

import httpcore2
from voice_clone_client import InvalidArgument

from ..audio.clips import ClipReader
from ..http.errors import HTTPFailure
from ..http.outgoing import FAILURES, SCHEMES, Outgoing, Resolve
from ..settings import Settings

_REDIRECTS = (301, 302, 303, 307, 308)
_TYPES = ("audio/", "video/", "application/octet-stream", "application/ogg", "binary/octet-stream")


class References:
    """Loads reference audio.

    Args:
        settings: the fields `reference_*`.
        resolve: looks a host up; by default a Resolver.
        clips: decodes what the server does not read.

    Raises:
        ValueError: the proxy is none.
    """

    def __init__(self, settings: Settings, resolve: Resolve | None = None, clips: ClipReader | None = None) -> None:
        self._outgoing = Outgoing(
            SCHEMES[settings.reference_urls],
            settings.reference_ports,
            settings.reference_networks,
            _refusal,
            resolve,
            settings.reference_proxy,
            ("data:audio/...;base64,",),
        )
        self._most = settings.reference_bytes
        self._seconds = settings.reference_seconds
        self._redirects = settings.reference_redirects
        self._clips = clips or ClipReader()

    async def load(self, source: str, hold: Callable[[int], None] = lambda _: None) -> bytes:
        """The clip in a format that the server reads; a data URL of such a clip is returned unchanged.

        Args:
            hold: called with the bytes that the gateway holds from now on; may raise.

        Raises:
            HTTPFailure: 400, the source is neither, or cannot be fetched or decoded.
        """
        if source[:5].lower() == "data:":
            clip = source.encode()
            hold(len(clip))
        else:
            try:
                clip = await asyncio.wait_for(self._fetch(source, hold), self._seconds)
            except asyncio.TimeoutError:
                raise _refusal(f"it did not arrive within {self._seconds:g} s") from None
        try:
            return await self._clips.readable(clip)
        except InvalidArgument as error:
            raise _refusal(str(error)) from None

    async def _fetch(self, url: str, hold: Callable[[int], None]) -> bytes:
        for _ in range(self._redirects + 1):
            parts = self._outgoing.parts(url)
            async with await self._outgoing.pool(parts) as pool:
                found = await self._get(pool, parts, hold)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise _refusal(f"it redirects more than {self._redirects} times")

    async def _get(
        self, pool: httpcore2.AsyncConnectionPool, parts: SplitResult, hold: Callable[[int], None]
    ) -> bytes | str:
        """The body, or the target of a redirect."""
        target = parts._replace(fragment="").geturl()
        headers = {"Accept": "audio/*", "Accept-Encoding": "identity", "User-Agent": "voice-clone-gateway"}
        try:
            async with pool.stream("GET", target, headers=list(headers.items())) as response:
                headers_by_name = {name.lower().decode(): value.decode("latin-1") for name, value in response.headers}
                if response.status in _REDIRECTS and "location" in headers_by_name:
                    return headers_by_name["location"]
                if response.status != 200:
                    raise _refusal(f"its server answered with status {response.status}")
                kind = headers_by_name.get("content-type", "application/octet-stream").strip().lower()
                if not kind.startswith(_TYPES) or headers_by_name.get("content-encoding", "identity") != "identity":
                    raise _refusal("it is no audio; its Content-Type must be audio/... or video/...")
                return await self._body(response, headers_by_name, hold)
        except FAILURES:
            raise self._outgoing.unreachable() from None

    async def _body(self, response: httpcore2.Response, headers: dict[str, str], hold: Callable[[int], None]) -> bytes:
        announced = headers.get("content-length", "0")
        body = bytearray()
        if not announced.isdigit() or int(announced) <= self._most:
            async for piece in response.aiter_stream():
                hold(len(piece))
                body += piece
                if len(body) > self._most:
                    break
            else:
                return bytes(body)
        raise _refusal(f"it is larger than {self._most} bytes")


def _refusal(why: str) -> HTTPFailure:
    return HTTPFailure(400, f"reference_audio cannot be used: {why}", "invalid_reference", param="reference_audio")
