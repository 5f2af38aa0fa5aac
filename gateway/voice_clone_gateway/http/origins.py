"""Pages of other origins, and names that point here: who may use a gateway that has no keys.

A browser sends what any page asks it to, also to a gateway on the user's own machine. It sends the page's origin. A
page whose own name was made to point to the gateway (DNS rebinding) has the right origin, but the wrong host. With keys
both are harmless: a page does not know the key.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp

from .errors import HTTPFailure

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(?::[0-9]*)?")  # and port


class Cors(CORSMiddleware):
    """Middleware that lets pages of these origins read the answers.

    Chrome asks whether a page of the internet may call a gateway in a private network. Only pages that are named may.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str], headers: Collection[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=headers,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if request_headers["origin"] not in self.allow_origins:
            del response.headers["Access-Control-Allow-Private-Network"]
        return response


def check_origin(connection: HTTPConnection, allowed: Collection[str]) -> None:
    """Check the page that caused a request; programs send no origin.

    Raises:
        HTTPFailure: 403, a page of another origin that is not in `allowed`.
    """
    origin = connection.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    if origin.partition("://")[2] != connection.headers.get("host"):
        message = "pages of this origin may not call this gateway; its --cors-origins names those that may"
        raise HTTPFailure(403, message, "forbidden_origin", "permission_error")


def check_host(connection: HTTPConnection, allowed: Collection[str]) -> None:
    """Check the name under which a request found the gateway.

    Addresses, `localhost` and names without a dot are harmless: no one else can make them point here.

    Raises:
        HTTPFailure: 421, another name that is not in `allowed`.
    """
    host = _HOST.fullmatch(connection.headers.get("host", ""))
    name = "?.?" if host is None else host[1].strip("[]").rstrip(".").lower()
    if "." not in name or name.endswith(".localhost") or _is_address(name) or "*" in allowed:
        return
    if name in (entry.lower() for entry in allowed):
        return
    message = "this gateway does not serve this host; name it in its --hosts, or give it keys"
    raise HTTPFailure(421, message, "forbidden_host")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
