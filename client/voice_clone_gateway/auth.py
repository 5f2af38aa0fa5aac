"""Bearer keys, each with scopes: `speak` to synthesise and to see which voices there are, `manage` for the voices.

Keys rest in memory as SHA-256 digests. A given key is compared with all of them, in constant time, and never logged.
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

from .http_errors import HTTPFailure
from .settings import PREFIX

Scope = Literal["speak", "manage"]
SCOPES: frozenset[Scope] = frozenset(("speak", "manage"))


class Keys:
    """The keys of a gateway. Without any, everybody may do everything.

    Args:
        lines: `KEY SCOPE[,SCOPE]` each; blank lines and such that begin with # do not count.

    Raises:
        ValueError: a line is wrong; says which, not what it holds.
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
        """The keys of a file, and those of the environment's variable.

        Raises:
            ValueError, OSError: they cannot be read.
        """
        lines = Path(path).read_text(encoding="utf-8").splitlines() if path else []
        return cls(lines + (os.environ if environment is None else environment).get(f"{PREFIX}API_KEYS", "").split(";"))

    def __bool__(self) -> bool:
        return bool(self._scopes)

    def scopes(self, connection: HTTPConnection) -> frozenset[Scope]:
        """What the bearer key of a request allows.

        Raises:
            HTTPFailure: 401, it is missing or unknown.
        """
        if not self._scopes:
            return SCOPES
        kind, _, key = connection.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not key.strip():
            raise _unauthorized("the key is missing; send the header Authorization: Bearer KEY")
        given, found = _digest(key.strip()), None
        for known, scopes in self._scopes:
            if hmac.compare_digest(given, known):
                found = scopes
        if found is None:
            raise _unauthorized("the key is unknown; ask who runs this gateway for one")
        return found

    def require(self, connection: HTTPConnection, scope: Scope) -> frozenset[Scope]:
        """What the request may do, at least `scope`.

        Raises:
            HTTPFailure: 401, or 403 if the key does not have the scope.
        """
        scopes = self.scopes(connection)
        if scope not in scopes:
            raise HTTPFailure(
                403, f"this key lacks the scope {scope}; use one that has it", "missing_scope", "permission_error"
            )
        return scopes


def guarded(scope: Scope) -> type[APIRoute]:
    """Routes that need a key with this scope. It is asked for before a byte of the body is read."""

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()

            async def guard(request: Request) -> Response:
                request.state.scopes = request.app.state.keys.require(request, scope)
                return await handler(request)

            return guard

    return GuardedRoute


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _unauthorized(message: str) -> HTTPFailure:
    return HTTPFailure(401, message, "invalid_api_key", "authentication_error", headers={"WWW-Authenticate": "Bearer"})
