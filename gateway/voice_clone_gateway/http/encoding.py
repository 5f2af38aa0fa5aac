"""Text of requests: all of it is UTF-8. What is not is refused, never guessed."""

from __future__ import annotations

from urllib.parse import parse_qsl

from .errors import HTTPFailure


def decoded(data: bytes | bytearray, what: str, param: str | None = None, advice: str = "") -> str:
    """The text of these bytes, without a byte order mark.

    Raises:
        HTTPFailure: 400, they are not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"{what} is not UTF-8 (byte {error.start}); encode its text as UTF-8{advice}"
        raise HTTPFailure(400, message, "invalid_encoding", param=param) from None


def urlencoded(data: bytes, what: str, most: int | None = None) -> list[tuple[str, str]]:
    """The fields of a query or of such a form.

    Raises:
        HTTPFailure: 400, a field is not UTF-8.
        ValueError: there are more than `most`.
    """
    # as Latin-1, which loses nothing
    pairs = parse_qsl(data.decode("latin-1"), keep_blank_values=True, encoding="latin-1", max_num_fields=most)
    fields = []
    for raw_name, raw_value in pairs:
        name = decoded(raw_name.encode("latin-1"), f"a name in {what}")
        fields.append((name, decoded(raw_value.encode("latin-1"), f"{name}: it", name)))
    return fields
