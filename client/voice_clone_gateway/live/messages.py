"""The messages of a client of the gateway's own WebSocket; `routes.websocket` describes the protocol."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import Field, InstanceOf, TypeAdapter, ValidationError

from ..http.errors import HTTPFailure
from ..schemas import Strict
from .config import StreamConfig


class InputText(Strict):
    """`input.text`: a piece of the text; it may end anywhere."""

    type: Literal["input.text"]
    text: InstanceOf[str]
    """A client that counts in UTF-16 may split a character, so halves of surrogate pairs are allowed."""


class InputFlush(Strict):
    """`input.flush`: speak what was written, without waiting for more of the sentence."""

    type: Literal["input.flush"]


class InputDone(Strict):
    """`input.done`: the utterance's text is complete; its rest is spoken."""

    type: Literal["input.done"]


class Cancel(Strict):
    """`cancel`: stop speaking."""

    type: Literal["cancel"]
    played_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """How much of the utterance's audio the client has played; the report then counts this, not the audio sent."""


class Close(Strict):
    """`session.close`: stop everything and close the connection."""

    type: Literal["session.close"]


ClientMessage = StreamConfig | InputText | InputFlush | InputDone | Cancel | Close
_ADAPTER: TypeAdapter[ClientMessage] = TypeAdapter(Annotated[ClientMessage, Field(discriminator="type")])
_KINDS = ("session.config", "input.text", "input.flush", "input.done", "cancel", "session.close")


def parse(values: Any) -> ClientMessage:
    """The message in the JSON value of a text frame.

    Raises:
        HTTPFailure: it has none.
        RequestValidationError: one of its fields is invalid.
    """
    kind = values.get("type") if isinstance(values, dict) else None
    if kind not in _KINDS:
        message = f"a message is a JSON object whose type is one of {', '.join(_KINDS)}"
        raise HTTPFailure(400, message, "invalid_argument", param="type")
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        errors = [{**each, "loc": each["loc"][1:]} for each in error.errors(include_url=False)]  # without the type
        raise RequestValidationError(errors) from None
