"""The web page at `/`: register a voice, type a text, hear it. Plain HTML and JavaScript without other origins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter, Request, Response

from ..http.whole_files import answered, tag_of

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "microphone=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)
"""`/`, and `/page/...` for its files. They require no key: the page asks for one and sends it with each request."""


def _serve(file: Path) -> Callable[[Request], Awaitable[Response]]:
    data = file.read_bytes()
    tag = tag_of(data)

    async def serve(request: Request) -> Response:
        return answered(request, data, _TYPES[file.suffix], tag, _HEADERS)

    return serve


for _file in sorted(Path(__file__).parent.iterdir()):
    if _file.suffix in _TYPES:
        _path = "/" if _file.name == "index.html" else f"/page/{_file.name}"
        router.add_api_route(_path, _serve(_file), methods=["GET", "HEAD"])
