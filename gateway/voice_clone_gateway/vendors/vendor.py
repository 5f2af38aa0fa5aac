"""What an adapter is: the routes of a vendor, and the shape of its errors."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from ..http.auth import guarded
from ..http.errors import HTTPFailure, Shape
from ..http.keys import Scope as KeyScope


@dataclass(frozen=True)
class Vendor:
    """An adapter.

    Attributes:
        paths: how the vendor's own paths begin.
        routers: its routes.
        shape: of its errors.
        speaks: whether a client of the vendor sent these headers, to a path that other APIs have, too.
        headers: of its answers, beside those of all.
    """

    paths: tuple[str, ...]
    routers: tuple[APIRouter, ...]
    shape: Shape
    speaks: Callable[[Headers], bool]
    headers: tuple[str, ...] = ()

    def is_asked(self, scope: Scope) -> bool:
        """Whether a request is one to this vendor."""
        path: str = scope["path"]
        return _begins(path, self.paths) or (_begins(path, SHARED) and self.speaks(Headers(scope=scope)))


SHARED = ("/", "/v1/models")
"""How the paths begin that several APIs have."""


def _begins(path: str, begins: Collection[str]) -> bool:
    return any(path == begin or path.startswith(f"{begin}/") for begin in begins)


def adapter(
    scope: KeyScope = "speak", several: Collection[str] = (), needs_server: bool = True, tokens: bool = True
) -> APIRouter:
    """A router for the calls of a vendor, whose keys need this scope. Its documentation is the vendor's.

    Args:
        several: the fields of forms that may come several times.
        needs_server, tokens: see `guarded`.
    """
    return APIRouter(route_class=guarded(scope, several, needs_server, tokens), include_in_schema=False)


def shared(speaks: Callable[[Headers], bool]) -> APIRouter:
    """The same for paths of `SHARED`: it has the requests of this vendor's clients, and leaves the others."""

    class OwnClients(guarded("speak")):  # type: ignore[misc]
        def matches(self, scope: Scope) -> tuple[Match, Scope]:
            match, child = super().matches(scope)
            return (match, child) if speaks(Headers(scope=scope)) else (Match.NONE, {})

    route_class: type[APIRoute] = OwnClients
    return APIRouter(route_class=route_class, include_in_schema=False)


def lasting_status(failed: HTTPFailure) -> int:
    """The status of an error for clients that repeat a request after 409 and 5xx: what never works is 400."""
    return 400 if failed.final and failed.status_code in (409, 500, 501) else failed.status_code


def refuse(router: APIRouter, path: str, why: str) -> None:
    """Refuse all calls of a path, and of the paths below it, for which there is no route before.

    Args:
        why: what the path does, and what to do here.
    """

    async def refused(request: Request) -> None:
        raise HTTPFailure(400, f"{request.url.path} {why}", "unsupported")

    for each in (path, f"{path}/{{rest:path}}"):
        router.add_api_route(each, refused, methods=["GET", "POST", "PATCH", "DELETE"])
