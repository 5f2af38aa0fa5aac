"""The token without which a server that has one refuses operations that write."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from voice_clone.errors import PermissionDenied
from voice_clone.turns import TOKEN_PARAMETER

_READING = frozenset({"get", "list", "presets", "stats", "resolve"})  # operations without a token: speech needs these


class WriteToken:
    """Allows operations that only read, and requests that carry the token; without a token, every operation.

    Args:
        token: printable ASCII; "" for none.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def check(self, operation: str | None, options: Mapping[str, Any], given: Any) -> None:
        """Check that the operation is allowed.

        Args:
            operation: of the speaker cache.
            options: its options; `prepare` writes where it has `force`.
            given: the parameter of the request; None if there is none.

        Raises:
            PermissionDenied: the token is missing or wrong.
        """
        if not self._token or operation in _READING or (operation == "prepare" and not options.get("force")):
            return
        sent = given.encode("utf-8", "surrogatepass") if isinstance(given, str) else b""
        if not hmac.compare_digest(sent, self._token):
            raise PermissionDenied(
                f"{operation} needs the server's write token, and this request carries "
                f"{'another one' if sent else 'none'}; give it as the parameter `{TOKEN_PARAMETER}`"
            )
