"""Bearer keys, each with scopes: `speak` for speech and the list of voices, `manage` for the voices themselves.

Memory holds SHA-256 digests of the keys. The key of a request is compared with all of them, in constant time, and is
never logged.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection

from ..settings import PREFIX
from .errors import HTTPFailure
from .origins import check_host, check_origin

Scope = Literal["speak", "manage"]
SCOPES: frozenset[Scope] = frozenset(("speak", "manage"))


class Keys:
    """The keys of a gateway. If there are none, every request is allowed.

    Args:
        lines: `KEY SCOPE[,SCOPE]` each; blank lines and lines that begin with # are ignored.

    Raises:
        ValueError: a line is invalid; the text has its number, not its content.
    """

    def __init__(self, lines: list[str]) -> None:
        self._scopes: list[tuple[bytes, frozenset[Scope]]] = []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            key, _, names = line.strip().partition(" ")
            scopes = frozenset(scope for scope in SCOPES if scope in names.replace(" ", "").split(","))
            if not scopes or len(scopes) != len(names.split(",")):
                raise ValueError(f"key {number} must be followed by its scopes: speak, manage or speak,manage")
            self._scopes.append((_digest(key), scopes))

    @classmethod
    def load(cls, path: str, environment: Mapping[str, str] | None = None) -> Keys:
        """The keys of a file and of the environment variable.

        Raises:
            ValueError, OSError: they cannot be read.
        """
        lines = Path(path).read_text(encoding="utf-8").splitlines() if path else []
        return cls(lines + (os.environ if environment is None else environment).get(f"{PREFIX}API_KEYS", "").split(";"))

    def __bool__(self) -> bool:
        return bool(self._scopes)

    def scopes(self, connection: HTTPConnection) -> frozenset[Scope]:
        """The scopes of a request's bearer key.

        Raises:
            HTTPFailure: 401, it is missing or unknown.
        """
        if not self._scopes:
            return SCOPES
        kind, _, key = connection.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not key.strip():
            raise _unauthorized("the key is missing; send the header Authorization: Bearer KEY")
        digest, found = _digest(key.strip()), None
        for known, scopes in self._scopes:
            if hmac.compare_digest(digest, known):
                found = scopes
        if found is None:
            raise _unauthorized("the key is unknown; ask the operator of this gateway for one")
        return found

    def require(self, connection: HTTPConnection, scope: Scope) -> frozenset[Scope]:
        """The scopes of a request, which include `scope`.

        Raises:
            HTTPFailure: 401, or 403 if the key does not have the scope.
        """
        scopes = self.scopes(connection)
        if scope not in scopes:
            raise HTTPFailure(
                403, f"this key lacks the scope {scope}; use one that has it", "missing_scope", "permission_error"
            )
        return scopes


def admit(connection: HTTPConnection, scope: Scope) -> frozenset[Scope]:
    """The scopes of a request that may be served.

    Raises:
        HTTPFailure: 401 or 403, see `Keys.require`; 403 or 421, see `origins`.
    """
    keys, settings = connection.app.state.keys, connection.app.state.settings
    if not keys:
        check_origin(connection, settings.cors_origins)
        check_host(connection, settings.hosts)
    scopes: frozenset[Scope] = keys.require(connection, scope)
    return scopes


def guarded(scope: Scope) -> type[APIRoute]:
    """Routes that require a key with this scope, or, of a gateway without keys, a page and a host that may use it.

    All this is checked before the body is read.
    """

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()

            async def guard(request: Request) -> Response:
                request.state.scopes = admit(request, scope)
                return await handler(request)

            return guard

    return GuardedRoute


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _unauthorized(message: str) -> HTTPFailure:
    return HTTPFailure(401, message, "invalid_api_key", "authentication_error", headers={"WWW-Authenticate": "Bearer"})
