"""The messages of a client of the gateway's own WebSocket; `routes.websocket` describes the protocol."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, InstanceOf, ValidationError

from ..http.errors import HTTPFailure, validation_failure
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
_KINDS: dict[str, type[ClientMessage]] = {
    "session.config": StreamConfig,
    "input.text": InputText,
    "input.flush": InputFlush,
    "input.done": InputDone,
    "cancel": Cancel,
    "session.close": Close,
}


def parse(values: Any) -> ClientMessage:
    """The message in the JSON value of a text frame.

    Raises:
        HTTPFailure: it has none, or one of its fields is invalid.
    """
    kind = values.get("type") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        message = f"a message is a JSON object whose type is one of {', '.join(_KINDS)}"
        raise HTTPFailure(400, message, "invalid_argument", param="type")
    model = _KINDS[kind]
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise validation_failure(error.errors(include_url=False), model.model_fields) from None
