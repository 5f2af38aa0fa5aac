"""What both clients have in common: which servers they call, and for whom they act."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc

from . import environment, requests
from .bundles import id_of
from .servers import channel
from .types import Mark

if TYPE_CHECKING:
    from typing_extensions import Self

S = TypeVar("S")


class ClientBase(Generic[S]):
    """The base of both clients, whose arguments are those of `Client`."""

    _connect: Callable[..., S]
    """Makes the servers of this kind of client."""

    def __init__(
        self,
        url: str | None = None,
        *,
        model: str | None = None,
        timeout: float | None = 60.0,
        credentials: grpc.ChannelCredentials | None = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        owner: str | None = None,
        max_owned: int | None = None,
        reserved: Sequence[str] = (),
        mark: Mark | None = None,
        proxy: str | None = None,
    ) -> None:
        self._servers = self._connect(
            environment.server(url),
            credentials,
            channel.metadata(headers, environment.token(token)),
            environment.proxy(proxy),
        )
        self._shared = False  # the connections are another client's
        self._model = model
        self._timeout = timeout
        self._owner, self._max_owned, self._mark = owner, max_owned, mark
        self._reserved = tuple(reserved)
        self._begin()

    def acting_for(
        self,
        owner: str | None,
        max_owned: int | None = None,
        mark: Mark | None = None,
        reserved: Sequence[str] = (),
    ) -> Self:
        """Return a client that acts for another owner over the same connections, which end with this client.

        Args:
            owner, max_owned, reserved: as of the class.
            mark: as of the class; None takes that of this client.
        """
        other = copy(self)
        other._shared = True
        other._owner, other._max_owned, other._mark = owner, max_owned, mark or self._mark
        other._reserved = tuple(reserved)
        other._begin_shared()
        return other

    @property
    def owner(self) -> str | None:
        """The owner for whom the client acts; None is the operator."""
        return self._owner

    def _begin(self) -> None:
        """Make what this kind of client has in addition."""

    def _begin_shared(self) -> None:
        """Make the same for a copy, whose connections are another client's."""

    def _operation(self, operation: str, fields: Mapping[str, Any]) -> tuple[Any, float | None, str | None]:
        """Return the arguments of `infer` for an operation on voices."""
        request = requests.cache(
            operation, owner=self._owner, max_owned=self._max_owned, reserved=self._reserved, **fields
        )
        return request, channel.timeout(self._timeout, fields.get("timeout")), id_of(fields)
