"""Whole files: parts of them, which players of browsers ask for, and nothing for a client that has the file already.

RFC 9110, sections 13 and 14. A request for several parts is answered with the whole file, as servers may.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from fastapi import Request, Response

from .errors import HTTPFailure, documented

RESPONSES = {
    206: {"description": "The part of the file that the header Range asks for"},
    304: {"description": "The client has this file already, as its header If-None-Match says"},
    **documented(416),
}
"""The entries of an OpenAPI description for the routes that answer files."""
_RANGE = re.compile(
    r"bytes=[ \t]*([0-9]{0,4000})-([0-9]{0,4000})[ \t]*", re.IGNORECASE
)  # Python reads no longer number


def unchanged(request: Request, tag: str | None, headers: Mapping[str, str] | None = None) -> Response | None:
    """The answer to a client that has the file of this tag already; None: it has not."""
    given = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if tag is None or not ({tag, "*"} & {*given}):
        return None
    return Response(status_code=304, headers={**(headers or {}), "ETag": tag})


def tag_of(data: bytes) -> str:
    """A strong entity tag of a file."""
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'


def answered(
    request: Request, data: bytes, media_type: str | None, tag: str | None, headers: Mapping[str, str] | None = None
) -> Response:
    """The file, or the part of it that the request asks for.

    Raises:
        HTTPFailure: 416, the file has no such part.
    """
    if (known := unchanged(request, tag, headers)) is not None:
        return known
    head, part = head_of(request, len(data), media_type, tag, headers)
    return Response(data[part.start : part.stop], head.status_code, head.headers)


def head_of(
    request: Request, size: int, media_type: str | None, tag: str | None, headers: Mapping[str, str] | None = None
) -> tuple[Response, range]:
    """The status and headers of the file, or of the part of it that the request asks for; and which bytes these are.

    Args and raises: as `answered`, with the size of the file in place of its data.
    """
    about = {**(headers or {}), "Accept-Ranges": "bytes", **({} if tag is None else {"ETag": tag})}
    part = None if request.state.head else _part(request.headers, size, tag)
    if part is not None:
        about["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    wanted = range(size) if part is None else part
    about["Content-Length"] = str(len(wanted))
    return Response(b"", 200 if part is None else 206, about, media_type), wanted


def _part(headers: Mapping[str, str], size: int, tag: str | None) -> range | None:
    """The bytes that are asked for; None: all of them."""
    found = _RANGE.fullmatch(headers.get("range", ""))
    if found is None or headers.get("if-range", tag) != tag:
        return None
    first, last = found.groups()
    if first:
        begin, end = int(first), min(int(last or size), size - 1) + 1
        if last and int(last) < int(first):
            return None
    elif last:
        begin, end = max(0, size - int(last)), size
    else:
        return None
    if begin >= end:
        message = f"the file has {size} bytes; ask for a part of them"
        raise HTTPFailure(416, message, "range_not_satisfiable", headers={"Content-Range": f"bytes */{size}"})
    return range(begin, end)
