"""Whether a request may change the voices or take them away."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from voice_clone.errors import PermissionDenied

PARAMETER = "x-voice-token"
"""The request parameter that carries the token: a header that Triton forwards."""

_OPEN = frozenset({"get", "list", "presets", "stats", "resolve"})  # speech needs these


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
        if not self._token or operation in _OPEN or (operation == "prepare" and not options.get("force")):
            return
        sent = given.encode("utf-8", "surrogatepass") if isinstance(given, str) else b""
        if not hmac.compare_digest(sent, self._token):
            raise PermissionDenied(
                f"{operation} needs the server's write token, and this request carries "
                f"{'another one' if sent else 'none'}; send it in the header {PARAMETER}"
            )
