"""Connections go straight to the server, whatever the environment says, unless a proxy is given."""

from __future__ import annotations

import os
import re
from typing import Any

from ..errors import ConnectionFailed, InvalidArgument, VoiceCloneError

_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
_FORM = re.compile(r"http://(?:[^\s@/]+@)?([^\s@/]+:\d+)/?")


class Way:
    """How the servers are reached.

    Args:
        proxy: `http://host:port` of an HTTP proxy that has the method CONNECT, perhaps with `user:password@`; None for
            none.

    Raises:
        InvalidArgument: it has another form.
    """

    def __init__(self, proxy: str | None) -> None:
        self._proxy = proxy
        found = None if proxy is None else _FORM.fullmatch(proxy)
        if proxy is not None and found is None:
            raise InvalidArgument("the `proxy` is wrong; give http://host:port of an HTTP proxy")
        self._shown = "" if found is None else found[1]  # without its password

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        return (("grpc.enable_http_proxy", 0),) if self._proxy is None else (("grpc.http_proxy", self._proxy),)

    def named_in(self, error: VoiceCloneError) -> VoiceCloneError:
        """Return the error. One of the connection then also says which proxy was used, or which one the environment
        names that was not used."""
        if not isinstance(error, ConnectionFailed):
            return error
        if self._proxy is not None:
            return ConnectionFailed(f"{error}; it was asked for through the proxy {self._shown}: does that work?")
        unused = next((name for name in _VARIABLES if os.environ.get(name) or os.environ.get(name.upper())), None)
        if unused is None:
            return error
        return ConnectionFailed(f"{error}; {unused} is set, but a proxy is used only if it is given as `proxy`")
