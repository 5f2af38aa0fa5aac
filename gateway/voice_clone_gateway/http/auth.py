"""Who makes a request: its key, or, without keys, any caller from a page and a host that may.

A key has scopes: `speak` for speech and the list of voices, `manage` for the voices themselves. Memory holds SHA-256
digests of the keys. The key of a request is compared with all of them, in constant time, and is never logged.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection
from voice_clone_client.callers import set_caller

from ..services import services_of
from ..settings import PREFIX
from .bodies import BoundedRequest
from .errors import HTTPFailure
from .keys import Key, Scope, caller_of, parse_key
from .origins import check_host, check_origin
from .presented_keys import presented
from .tokens import digest_of, is_valid, name_of, token_of

ANYONE = Key()


class Keys:
    """The keys of a gateway. If there are none, every request is allowed.

    Args:
        lines: see `keys`; blank lines and lines that begin with # are ignored.

    Raises:
        ValueError: a line is invalid, or has the key of an earlier one; the text has its number, not its content.
    """

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._keys: list[tuple[bytes, Key]] = []
        self._of_tokens: dict[str, tuple[bytes, Key]] = {}  # what the bearers of their tokens may do
        self._add(lines)

    def _add(self, lines: Iterable[str]) -> None:
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                secret, key = parse_key(line)
            except ValueError as error:
                raise ValueError(f"key {number} {error}") from None
            digest = digest_of(secret)
            if any(digest == known for known, _ in self._keys):
                raise ValueError(f"key {number} is that of an earlier line; give each line a key of its own")
            for _, other in self._keys:
                if other.turns == key.turns:
                    key.gate.join(other.gate)
                    key.characters.join(other.characters)
            self._keys.append((digest, key))
            self._of_tokens[name_of(digest)] = digest, replace(key, scopes=key.scopes & {"speak"}, token=True)

    @classmethod
    def load(cls, path: str, environment: Mapping[str, str] | None = None) -> Keys:
        """The keys of a file and of the environment variable. An empty path or variable names no source.

        Raises:
            ValueError, OSError: they cannot be read, or a source that is named has no key.
        """
        variable = f"{PREFIX}API_KEYS"
        value = (os.environ if environment is None else environment).get(variable, "")
        named = {path: _lines_of(path)} if path else {}
        if value:
            named[variable] = value.removeprefix("\ufeff").split(";")
        keys = cls()
        for source, lines in named.items():
            known = len(keys._keys)
            try:
                keys._add(lines)
            except ValueError as error:
                raise ValueError(f"{source}: {error}") from None
            if len(keys._keys) == known:
                raise ValueError(f"{source} has no key, so anyone could use the gateway; add one, or do not name it")
        return keys

    def __bool__(self) -> bool:
        return bool(self._keys)

    def all(self) -> list[Key]:
        """All keys, without their secrets."""
        return [key for _, key in self._keys]

    def bearers(self) -> list[Key]:
        """All keys, and what the bearers of their tokens have."""
        return [*self.all(), *(key for _, key in self._of_tokens.values())]

    def find(self, connection: HTTPConnection) -> Key:
        """The key of a request.

        Raises:
            HTTPFailure: 401, it is missing or unknown.
        """
        if not self._keys:
            return ANYONE
        secret = presented(connection)
        if secret is None:
            raise _unauthorized("the key is missing; send the header Authorization: Bearer KEY")
        if (token := token_of(secret)) is not None:
            return self._of_token(*token)
        digest, found = digest_of(secret), None
        for known, key in self._keys:
            if hmac.compare_digest(digest, known):
                found = key
        if found is None:
            raise _unauthorized("the key is unknown; ask the operator of this gateway for one")
        return found

    def _of_token(self, name: str, end: int, code: str) -> Key:
        digest, key = self._of_tokens.get(name, (b"", ANYONE))
        if not digest or not is_valid(digest, end, code):
            raise _unauthorized("the token is unknown, or its time is over; get another one")
        return key

    def caller(self, connection: HTTPConnection) -> str:
        """The name under which a request takes turns before it is admitted; without a known key its address has it."""
        try:
            key = self.find(connection)
        except HTTPFailure:
            key = ANYONE
        return caller_of(key.turns, connection.scope)

    def require(self, connection: HTTPConnection, scope: Scope) -> Key:
        """The key of a request, which has this scope.

        Raises:
            HTTPFailure: 401, or 403 if the key does not have the scope.
        """
        key = self.find(connection)
        if scope not in key.scopes:
            raise HTTPFailure(
                403, f"this key lacks the scope {scope}; use one that has it", "missing_scope", "permission_error"
            )
        return key


def admit(connection: HTTPConnection, scope: Scope) -> Key:
    """The key of a request that may be served.

    Raises:
        HTTPFailure: 401 or 403, see `Keys.require`; 403 or 421, see `origins`.
    """
    services = services_of(connection)
    keys, settings = services.keys, services.settings
    if not keys:
        check_origin(connection, settings.cors_origins)
        check_host(connection, settings.hosts)
    key: Key = keys.require(connection, scope)
    caller = caller_of(key.turns, connection.scope)
    set_caller(caller)
    connection.state.held.move(caller)
    return key


def guarded(
    scope: Scope, several: Collection[str] = (), needs_server: bool = True, tokens: bool = True
) -> type[APIRoute]:
    """Routes that require a key with this scope, or, of a gateway without keys, a page and a host that may use it.

    All this is checked before the body is read. Bodies are parsed as `BoundedRequest` does it, with `several`. Routes
    with `needs_server` wait for a speech server that is idle. Those without `tokens` are for bearers of the key itself.
    """

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()

            async def guard(request: Request) -> Response:
                key = request.state.key = admit(request, scope)
                if key.token and not tokens:
                    message = "a token may only speak; use the key itself to reach what it keeps"
                    raise HTTPFailure(403, message, "missing_scope", "permission_error")
                if needs_server:
                    await services_of(request).idle_server.run_for(request)
                request.state.client = services_of(request).clients.of(key)
                bounded = BoundedRequest(request.scope, request.receive)
                bounded.several = frozenset(several)
                return await handler(bounded)

            return guard

    return GuardedRoute


def _lines_of(path: str) -> list[str]:
    """The lines of a file of keys; raises ValueError, OSError."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # as UTF-16 has it
        raise ValueError(f"{path} is not UTF-8; save it as UTF-8")
    return text.splitlines()


def _unauthorized(message: str) -> HTTPFailure:
    return HTTPFailure(401, message, "invalid_api_key", "authentication_error", headers={"WWW-Authenticate": "Bearer"})
