"""The kinds of errors: the one table from which server, client, gateway and docs/triton_api.md have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

INVALID, SERVER, LIMIT, PERMISSION = "invalid_request_error", "server_error", "rate_limit_error", "permission_error"
"""The types of errors of the OpenAI API."""


@dataclass(frozen=True)
class Kind:
    """A kind of error.

    Attributes:
        slug: stands before the text of a message; never changes.
        code: the server answers with this constant of Triton's TritonError; None: only the client has such errors.
        status, type: of the gateway's answer.
        gateway: the code in the gateway's answer, where it is not the slug.
        final: whether the same request would fail again, though clients repeat it after this status.
        meaning: for docs/triton_api.md.
    """

    slug: str
    code: str | None
    status: int
    type: str
    meaning: str = ""
    gateway: str = ""
    final: bool = False


KINDS = (
    Kind("invalid_argument", "INVALID_ARG", 400, INVALID, "the message says what would be right"),
    Kind("speaker_not_found", "NOT_FOUND", 404, INVALID, gateway="voice_not_found"),
    Kind(
        *("stream_not_found", "NOT_FOUND", 404, INVALID),
        "there is no speech for the [text that was appended](appended_text.md)",
    ),
    Kind(
        *("speaker_exists", "ALREADY_EXISTS", 409, INVALID, "[the name is taken](#names-that-are-taken)"),
        gateway="voice_exists",
        final=True,
    ),
    Kind(
        *("name_reserved", "ALREADY_EXISTS", 409, INVALID),
        "the operator means another voice by the name, see [tenants](security.md#tenants)",
        final=True,
    ),
    Kind(  # Triton has no code for it; at the gateway: it has no valid token itself
        *("permission_denied", "INVALID_ARG", 403, PERMISSION),
        "the write token is missing or wrong, see [security](security.md#voices)",
    ),
    Kind(
        *("quota_exceeded", "UNAVAILABLE", 429, LIMIT),
        "the owner has as many voices as it may have, see [tenants](security.md#tenants)",
        gateway="too_many_voices",
        final=True,
    ),
    Kind("unsupported", "UNSUPPORTED", 501, SERVER, "not with this checkpoint or server", final=True),
    Kind("overloaded", "UNAVAILABLE", 503, SERVER, "try again later"),
    Kind("cancelled", "CANCELLED", 503, SERVER),  # at the gateway: by the server; its own clients read no answer
    Kind("deadline_exceeded", "UNAVAILABLE", 504, SERVER),
    Kind("internal", "INTERNAL", 500, SERVER, "the server's log has the detail under the request's id"),
    Kind("connection_failed", None, 503, SERVER, gateway="server_unavailable"),
    Kind("broken_stream", None, 500, SERVER, gateway="internal"),
    Kind("incomplete", None, 500, SERVER, final=True),  # it was tried several times already
)
BY_SLUG: Mapping[str, Kind] = {kind.slug: kind for kind in KINDS}
