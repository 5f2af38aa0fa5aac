"""What the protocols of other vendors share: options in the query of the URL, and errors that end the connection."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, TypeVar

from fastapi import WebSocket
from pydantic import BaseModel, ValidationError
from starlette.datastructures import QueryParams

from ..fields import ALIASES
from ..http.errors import HTTPFailure, failure, validation_failure
from ..http.keys import Key
from ..live.config import StreamConfig
from ..live.session import Session
from ..live.utterance import Utterance
from ..settings import Settings
from ..speech.synthesis import check_options

_OWN = {*StreamConfig.model_fields, *ALIASES}
"""The gateway's own options. Others are new ones of the vendor's, which it ignores."""
_TEXTS = ("language", "model", "streaming_mode", "voice")
"""Own options that are always texts; the others may be numbers, true, false or lists in JSON."""
M = TypeVar("M", bound=BaseModel)
_REASON = 123  # bytes; what a close frame holds


class TaggedConfig(StreamConfig):
    """The configuration of texts that may have `<break time="1s"/>`, as with ElevenLabs and Cartesia."""

    tag_pauses: ClassVar[bool] = True


class VendorSession(Session):
    """A session in which any error ends the connection, as it does with these vendors.

    Args:
        websocket: accepted.
        key: whose limits hold.
        config: how its texts are spoken.
        idle_seconds: see `Session`.
    """

    def __init__(self, websocket: WebSocket, key: Key, config: StreamConfig, idle_seconds: float | None = None) -> None:
        super().__init__(websocket, key, idle_seconds)
        self._config = config
        self._ending = False

    @abstractmethod
    async def tell_end_of(self, utterance: Utterance) -> None:
        """All audio of an utterance was sent."""

    async def tell_end_of_session(self) -> None:
        """All was spoken; the connection will be closed."""

    @abstractmethod
    async def tell_error(self, message: str, code: str, close_code: int, utterance: Utterance | None) -> None:
        """An error, before the connection is closed with this code."""

    async def receive(self, message: Mapping[str, Any]) -> None:
        if not self._ending:
            await super().receive(message)

    async def finish(self) -> None:
        """Drop the texts that are incomplete, speak the others to their end, then close the connection."""
        self._ending = True
        await self.stop(lambda utterance: not utterance.complete.is_set())
        await self._close_if_spoken()

    async def tell_done(self, utterance: Utterance) -> None:
        await self.tell_end_of(utterance)
        utterance.over = True
        await self._close_if_spoken()

    async def _close_if_spoken(self) -> None:
        if self._ending and all(utterance.over for utterance in self._utterances):
            await self.tell_end_of_session()
            await self.close(1000)

    async def tell_failure(self, error: Exception, utterance: Utterance | None = None) -> None:
        failed = failure(error, self._id, self._settings.retry_after, {})
        detail = failed.body()["error"]
        code = 1008 if failed.status_code < 500 else 1011
        await self.tell_error(detail["message"], detail["code"], code, utterance)
        await self.close(code, _cut(detail["message"]))


class Query:
    """The options in a URL's query, in the words of a vendor; what is left of them are the gateway's own."""

    def __init__(self, params: QueryParams) -> None:
        self._left = dict(params)
        self._times = Counter(name for name, _ in params.multi_items())

    def take(self, name: str) -> str | None:
        """The value of an option; None if it is absent or empty.

        Raises:
            HTTPFailure: it is given twice.
        """
        if self._times[name] > 1:
            raise refused(name, "it is given more than once")
        return self._left.pop(name, None) or None

    def choose(self, name: str, values: Collection[str], default: str | None = None) -> str | None:
        """The value of an option that has one of these.

        Raises:
            HTTPFailure: it has another.
        """
        value = self.take(name)
        if value is not None and value not in values:
            raise refused(name, f"this gateway has {', '.join(values)}, not {value!r}")
        return default if value is None else value

    def config(self, settings: Settings, kind: type[StreamConfig] = StreamConfig, **vendor: Any) -> StreamConfig:
        """How to speak: the vendor's options in the gateway's words, and those that are the gateway's own.

        Args:
            kind: of the configuration.
            vendor: the vendor's options.

        Raises:
            HTTPFailure, InvalidArgument: an option is unknown or invalid.
        """
        left = {name: self.take(name) or "" for name in [*self._left] if name in _OWN}
        own = {name: value if name in _TEXTS else _parsed(value) for name, value in left.items()}
        for name, value in vendor.items():
            if value is not None and own.setdefault(name, value) != value:
                raise refused(name, f"the gateway's own option {name} contradicts the others; leave it out")
        return checked(settings, {"streaming_mode": "token_level", **own}, kind)


def checked(settings: Settings, values: Mapping[str, Any], kind: type[StreamConfig] = StreamConfig) -> StreamConfig:
    """The configuration of these values.

    Raises:
        HTTPFailure, InvalidArgument: one is unknown or invalid.
    """
    try:
        config = kind.model_validate({**values, "type": "session.config"})
    except ValidationError as error:
        raise validation_failure(error.errors(include_url=False), StreamConfig.model_fields) from None
    check_options(settings, config)
    return config


def read(kind: type[M], message: Any) -> M:
    """The message in a JSON value.

    Raises:
        HTTPFailure: it is no object, or has none.
    """
    if not isinstance(message, dict):
        raise HTTPFailure(400, "a message is a JSON object", "invalid_argument")
    try:
        return kind.model_validate(message)
    except ValidationError as error:
        raise validation_failure(error.errors(include_url=False), kind.model_fields) from None


def refused(name: str, text: str) -> HTTPFailure:
    """The error of an option or a field."""
    return HTTPFailure(400, f"{name}: {text}", "invalid_argument", param=name)


def number(name: str, value: str | None) -> float | None:
    """The number of an option.

    Raises:
        HTTPFailure: it is none.
    """
    parsed = None if value is None else _parsed(value)
    if isinstance(parsed, str | bool):
        raise refused(name, f"{value!r} is no number")
    return parsed


def _parsed(value: str) -> Any:
    """A number, true, false or a list; else the text."""
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return parsed if isinstance(parsed, int | float | list) else value


def _cut(text: str) -> str:
    """As much of a text as fits into a close frame."""
    return text.encode()[:_REASON].decode(errors="ignore")
