"""The table of vendors' paths in docs/http_api.md, from the routes of the adapters. `python -m tools.models` writes it.

A route's docstring begins with the method of the vendor's client. Routes without one refuse.
"""

from __future__ import annotations

from collections.abc import Iterator

from starlette.routing import BaseRoute, Route, WebSocketRoute
from voice_clone_gateway.vendors.cartesia import CARTESIA
from voice_clone_gateway.vendors.deepgram import DEEPGRAM
from voice_clone_gateway.vendors.elevenlabs import ELEVENLABS
from voice_clone_gateway.vendors.openai import OPENAI
from voice_clone_gateway.vendors.vendor import Vendor

NAMES = {"OpenAI": OPENAI, "ElevenLabs": ELEVENLABS, "Deepgram": DEEPGRAM, "Cartesia": CARTESIA}
_HEAD = "| vendor | path | what it is |\n|---|---|---|\n"
_REST = "/{rest:path}"


def table() -> str:
    """A line for each path and what its methods do; then the paths that are refused."""
    return _HEAD + "".join(line for name, vendor in NAMES.items() for line in _lines(name, vendor))


def _lines(name: str, vendor: Vendor) -> Iterator[str]:
    routes = [route for router in vendor.routers for route in router.routes]
    for path in dict.fromkeys(_path(route) for route in routes if _says(route)):
        found = [(_methods(route), _says(route)) for route in routes if _path(route) == path and _says(route)]
        methods = ", ".join(dict.fromkeys(method for method, _ in found))
        yield f"| {name} | {methods} `{path}` | {'; '.join(dict.fromkeys(says for _, says in found))} |\n"
    refused = [f"`{_path(route)}`" for route in routes if not _says(route) and not _path(route).endswith(_REST)]
    if refused:
        yield f"| {name} | other methods of {', '.join(refused)} | refused, with what to do here |\n"


def _path(route: BaseRoute) -> str:
    assert isinstance(route, Route | WebSocketRoute)
    return route.path


def _methods(route: BaseRoute) -> str:
    return ", ".join(sorted(route.methods or ())) if isinstance(route, Route) else "WebSocket"


def _says(route: BaseRoute) -> str:
    """The first sentence of a route's docstring."""
    assert isinstance(route, Route | WebSocketRoute)
    first, _, _ = (route.endpoint.__doc__ or "").strip().partition("\n")
    return first.partition(". ")[0].removesuffix(".")
