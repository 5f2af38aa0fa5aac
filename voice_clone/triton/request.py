"""One inference request: its inputs and parameters, copied out of the server's memory."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from voice_clone.errors import InvalidArgument
from voice_clone.speech import parse_object
from voice_clone.triton.tensors import Array
from voice_clone.turns import PLAIN, TOKEN_PARAMETER, Caller


class Request:
    """The inputs and parameters of one inference request, copied out of the server's memory; None: not given.

    Attributes:
        came: when it came in, on the monotonic clock.

    Args:
        request: Triton's.
        required: names of inputs. In a model that has optional ones too Triton only counts them
            (fault: counted-inputs).

    Raises:
        InvalidArgument: one of them is missing.
    """

    def __init__(self, request: Any, required: Iterable[str]) -> None:
        self.came = time.monotonic()
        self._inputs: dict[str, Array] = {t.name(): t.as_numpy().copy() for t in request.inputs()}
        self.require(*required)
        # Some are forwarded headers, whose names keep the case in which they were sent.
        try:
            given: dict[str, Any] = json.loads(request.parameters() or "{}")
        except UnicodeDecodeError:
            raise InvalidArgument("the request's parameters must be UTF-8 text") from None
        self._parameters = {name.lower(): value for name, value in given.items()}

    def require(self, *names: str) -> None:
        """Check that these inputs are given.

        Raises:
            InvalidArgument: one of them is missing.
        """
        for name in names:
            if name not in self._inputs:
                raise InvalidArgument(f"`{name}` is missing")

    def parameter(self, name: str) -> Any:
        """A request parameter: a bool, an int, a float or a text. `name` is in lower case."""
        return self._parameters.get(name)

    def caller(self, token: str) -> Caller:
        """For whom the request is, by its parameters `caller` and `urgency`.

        Args:
            token: without this one, in the parameter `x-voice-token`, a request does not say for whom it is: a stranger
                could be a new caller each time, and so be first each time. "" believes all.

        Raises:
            InvalidArgument: a parameter is malformed.
        """
        known = not token or hmac.compare_digest(str(self.parameter(TOKEN_PARAMETER)).encode(), token.encode())
        name, urgency = self.parameter("caller"), self.parameter("urgency")
        return Caller(name if known and name is not None else PLAIN.name, PLAIN.urgency if urgency is None else urgency)

    @property
    def passed_on(self) -> dict[str, Any]:
        """The parameters by which `caller` knows it in the models that work for this request, too."""
        names = ("caller", "urgency", TOKEN_PARAMETER)
        return {name: value for name in names if (value := self.parameter(name)) is not None}

    def array(self, name: str) -> Array | None:
        """The tensor as the server declared it."""
        return self._inputs.get(name)

    def arrays(self) -> Mapping[str, Array]:
        """All tensors that are given, by name."""
        return self._inputs

    def raw(self, name: str) -> bytes | None:
        """A STRING tensor of one element as bytes."""
        values = self._one(name)
        if values is None:
            return None
        return values if isinstance(values, bytes) else str(values).encode()

    def text(self, name: str) -> str | None:
        """A STRING tensor of one element as text.

        Raises:
            InvalidArgument: the bytes are not UTF-8.
        """
        value = self.raw(name)
        try:
            return None if value is None else value.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidArgument(f"`{name}` must be UTF-8 text") from None

    def json_object(self, name: str) -> dict[str, Any]:
        """A STRING tensor of one element that holds a JSON object; empty where there is none.

        Raises:
            InvalidArgument: it holds something else.
        """
        return parse_object(name, self.text(name))

    def number(self, name: str) -> Any:
        """A tensor of one element as a Python bool, int or float."""
        value = self._one(name)
        return None if value is None else value.item()

    def _one(self, name: str) -> Any:
        values = self._inputs.get(name)
        if values is None:
            return None
        if values.size != 1:
            raise InvalidArgument(f"`{name}` must have exactly one element, not {values.size}")
        return values.reshape(-1)[0]
