"""/v1/audio/bundle, .../export and .../audio: what takes voices out of the server, and brings them in."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from safetensors.numpy import load
from starlette.types import Message, Receive, Scope, Send
from voice_clone_client import InvalidArgument, Voice, VoiceCloneError, VoiceNotFound
from voice_clone_client.bundles import ExportedBundle
from voice_clone_client.sources import PART

from ..http.audit import recorded
from ..http.auth import guarded
from ..http.connection import ClientGone, while_connected
from ..http.errors import HTTPFailure, documented, error_code
from ..http.whole_files import RESPONSES, answered, head_of, unchanged
from ..services import services_of
from ..speech.response import body_message
from .voice_answers import Imported
from .voices import ERRORS, Name

log = logging.getLogger(__name__)
manage = APIRouter(route_class=guarded("manage"), tags=["voices"])

_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@manage.post(
    "/v1/audio/bundle",
    response_model_exclude_none=True,
    responses=documented(*ERRORS, 409, 413, 429),
    openapi_extra={"requestBody": {"content": _BYTES, "required": True}},
)
async def import_voices(
    request: Request,
    reextract: Annotated[bool, Query(description="Compute artifacts of another checkpoint again")] = False,
    replace: Annotated[bool, Query(description="Replace voices of the same names that differ")] = False,
) -> Imported:
    """Register the voices of an exported bundle."""
    with recorded(request, "import", None) as entry:
        async with aclosing(_parts(request)) as parts:
            voices = await request.state.client.import_parts(parts, reextract, replace)
        names = entry["voices"] = [voice.name for voice in voices]  # which only the server reads out of the bundle
    return Imported(voices=names)


async def _parts(request: Request) -> AsyncGenerator[bytes, None]:
    """The body, of which no more is held here than goes to the server at once, each part in a turn after speech."""
    turn = services_of(request).after_speech.turn
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size >= PART:
            async with turn():
                yield b"".join(pieces)
            pieces.clear()
            request.state.held.add(-size)
            size = 0
    async with turn():
        yield b"".join(pieces)


_BUNDLE: dict[int | str, dict[str, Any]] = {200: {"content": _BYTES}, **RESPONSES}


@manage.get("/v1/audio/bundle", response_class=Response, responses={**_BUNDLE, **documented(*ERRORS, 429)})
async def export_voices(request: Request) -> Response:
    """A bundle of all voices."""
    if request.state.head:
        return _head("application/octet-stream")
    return _Bundle(request)


@manage.get(
    "/v1/audio/voices/{name}/audio",
    response_class=Response,
    responses={
        200: {"content": {"audio/*": {"schema": {"type": "string", "format": "binary"}}}},
        **RESPONSES,
        **documented(*ERRORS, 404),
    },
)
async def get_audio(
    name: Name,
    request: Request,
    style: Annotated[str | None, Query(description="Of the clip; by default the first one")] = None,
) -> Response:
    """The clip in its uploaded form."""
    client = request.state.client
    found = await client.get(name)
    voice = _in_style(found, style)
    tag = _tag(found.generation, voice.file_size)
    if (known := unchanged(request, tag)) is not None:
        return known
    if request.state.head and voice.embedding_source != "direct":
        return _head(voice.mime_type, voice.file_size, tag)
    with recorded(request, "export", name) as entry:
        entry |= {} if style is None else {"style": style}
        bundle = await _exported(request, name)
        audio, kind, generation = await asyncio.to_thread(_clip_of, bundle, found, style)
        return answered(request, audio, kind, _tag(generation, len(audio)))


@manage.get(
    "/v1/audio/voices/{name}/export",
    response_class=Response,
    responses={**_BUNDLE, **documented(*ERRORS, 404, 429)},
)
async def export_voice(name: Name, request: Request) -> Response:
    """A bundle with this voice: its record, clip and cache."""
    if request.state.head:
        await request.state.client.get(name)
        return _head("application/octet-stream")
    return _Bundle(request, name)


def _in_style(voice: Voice, style: str | None) -> Voice:
    """The clip of a style. Raises: InvalidArgument: the voice has none."""
    clip = voice.clip(style)
    if clip is None:
        there = ", ".join(voice.all_styles)
        raise InvalidArgument(f"the voice {voice.name!r} has no `style` {style!r}; its styles are {there}")
    return clip


def _clip_of(bundle: bytes, found: Voice, style: str | None) -> tuple[bytes, str | None, int | None]:
    """The bytes and media type of a clip in a bundle of one voice, and the generation of the voice.

    Args:
        found: the voice, which that of the bundle may have replaced.
    """
    files = load(bundle)  # safetensors, whose tensors are the voices' files
    if "0" not in files:
        raise VoiceNotFound(f"no voice is registered under the name {found.name!r}")
    file = files["0"].tobytes()
    voice = Voice.from_record({**found.record, **_record(file)})
    clip = _in_style(voice, style)
    tensor = next((f"~{name}/audio" for name, each in voice.styles.items() if each is clip), "audio")
    audio = load(file).get(tensor)
    if audio is None:
        message = f"the voice {voice.name!r} was registered as an embedding; it has no audio"
        raise HTTPFailure(404, message, "audio_not_found")
    of_clip = audio.tobytes()[: clip.file_size]  # further recordings are behind it
    return of_clip, clip.mime_type, voice.generation


def _head(kind: str | None, size: int | None = None, tag: str | None = None) -> Response:
    """The answer to HEAD, for which nothing is exported."""
    answer = Response(media_type=kind, headers={"Accept-Ranges": "bytes", **({} if tag is None else {"ETag": tag})})
    del answer.headers["content-length"]
    if size is not None:
        answer.headers["content-length"] = str(size)
    return answer


def _tag(generation: int | None, size: int | None) -> str | None:
    """The entity tag of a clip; None: an older server does not say which generation it is."""
    return None if generation is None else f'"{generation}-{size}"'


def _record(file: bytes) -> dict[str, Any]:
    """The server's record of a voice without its artifacts, in the header of its file."""
    header = json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])
    record: dict[str, Any] = json.loads(header.get("__metadata__", {}).get("record", "{}"))
    for each in (record, *record.get("styles", {}).values()):
        each.pop("artifacts", None)
        each.pop("takes", None)  # in a file they have another form than in an answer
    return record


async def _exported(request: Request, name: str) -> bytes:
    """A bundle of one voice, in the account until the answer is sent."""
    async with services_of(request).after_speech.turn():
        data: bytes = await request.state.client.export(name)
        request.state.held.add(len(data))
    request.state.held.freeze()
    return data


class _Bundle(Response):
    """A bundle of one voice, or of all, of which no more is held here than goes to the reader at once.

    It is of the voices as they are when the answer begins. An error after that breaks it off.
    """

    def __init__(self, request: Request, name: str | None = None) -> None:
        super().__init__()
        self._request = request
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exports = services_of(self._request).exports
        with recorded(self._request, "export", self._name) as entry:
            try:
                with exports.of(self._request.state.held.caller):
                    end = await while_connected(receive, self._answer(send, entry))
                for message in end:  # after that the client may ask for its next export
                    await send(message)
            except ClientGone as gone:
                entry["outcome"] = gone.slug

    async def _answer(self, send: Send, entry: dict[str, Any]) -> list[Message]:
        """Send all messages but the last ones, which are returned."""
        state, bundle = self._request.state, ExportedBundle(name=self._name)
        try:
            part = await self._part(bundle)
            state.held.add(len(part))
            state.held.freeze()
            tag = f'"{bundle.digest[:32]}"'
            headers = {"Content-Disposition": 'attachment; filename="voices.safetensors"'}
            if (known := unchanged(self._request, tag, headers)) is not None:
                return [_start(known), body_message(b"", more=False)]
            head, wanted = head_of(self._request, bundle.size, "application/octet-stream", tag, headers)
            state.in_parts = True
            await send(_start(head))
            try:
                return [await self._send(bundle, part, wanted, send)]
            except VoiceCloneError as error:
                entry["outcome"] = error_code(error)
                log.warning("request %s broke off: %s", state.request_id, error)
                return []  # without an end the web server breaks it off
        finally:
            state.client.forget_export(bundle)

    async def _send(self, bundle: ExportedBundle, part: bytes, wanted: range, send: Send) -> Message:
        """Send the bytes that are wanted, which may begin in this first part; the last message is returned."""
        begin = 0
        while True:
            body = part[max(0, wanted.start - begin) : wanted.stop - begin]
            begin = bundle.offset = max(bundle.offset, wanted.start)
            if begin >= wanted.stop:
                return body_message(body, more=False)
            await send(body_message(body))
            part = await self._part(bundle)

    async def _part(self, bundle: ExportedBundle) -> bytes:
        """The next part; the server makes the bundle with the first one."""
        async with services_of(self._request).after_speech.turn():
            part: bytes = await self._request.state.client.export_part(bundle)
            return part


def _start(head: Response) -> Message:
    return {"type": "http.response.start", "status": head.status_code, "headers": head.raw_headers}
