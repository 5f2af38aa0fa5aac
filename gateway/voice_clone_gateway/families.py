"""The model families of the speech server, and the names under which requests choose one."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from voice_clone_client import ConnectionFailed, DeadlineExceeded, Family, Internal, Unsupported, VoiceCloneError
from voice_clone_client.designs import designer

from .compatibility import TASKS
from .http.errors import HTTPFailure
from .settings import parse_alias

log = logging.getLogger(__name__)

REFRESH_SECONDS = 5.0  # least time between two calls for the list
RETRY_SECONDS = 1.0  # the same after a call that failed
CALL_SECONDS = 5.0  # longest call


class Lister(Protocol):
    """The source of the list: `voice_clone_client.AsyncClient`."""

    async def families(self) -> dict[str, Family]:
        """All families by name, the server's default first."""


class Families:
    """The families of one server, for one event loop.

    The first request that needs the list asks the server for it. The list is then kept and refreshed in the background,
    so no other speech waits for a call. Requests for `/v1/models` and for an unknown model wait for a fresh list. All
    requests together cause at most one call in `REFRESH_SECONDS`; after a failure, one in `RETRY_SECONDS`.

    Args:
        client: asks the server.
        default: the family of requests that name no model; "" for the server's default.
        aliases: further names, `ALIAS` for the default family or `ALIAS=FAMILY`.
        clock: seconds.
        away: says whether the server has been ended, and must not be asked.

    Raises:
        ValueError: an alias has another form, or two families.
    """

    def __init__(
        self,
        client: Lister,
        default: str = "",
        aliases: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
        away: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client = client
        self._default = default
        self._aliases = list(dict.fromkeys(map(parse_alias, aliases)))
        names = [alias for alias, _ in self._aliases]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"model_aliases give {twice!r} two families; give it one")
        self._clock = clock
        self._away = away
        self._listed: list[str] | None = None  # by the server
        self._families: dict[str, Family] = {}  # likewise, by name
        self._error: VoiceCloneError | None = None  # of the latest call
        self._call: asyncio.Task[None] | None = None
        self._next_call = float("-inf")  # earliest time

    async def choose(self, name: str | None) -> str:
        """The family for a request.

        Args:
            name: the model that the request names; None for the default.

        Raises:
            HTTPFailure: 404, there is no such model.
            VoiceCloneError: the list is needed, and the server did not answer it.
        """
        family = self._find(name)
        if family is not None and family == self._default:
            return family  # configured: no call
        if self._listed is None or family is None:
            await self._refresh()
            family = self._find(name)
        else:
            self._start_call()
        if family is not None:
            return family
        names = self._names()
        if self._error is not None and not (self._listed is not None and name is not None and names):
            raise _copy(self._error)
        if name is None:
            raise Unsupported("the speech server has no model family")
        raise unknown_model(name, names)

    async def get(self, family: str) -> Family:
        """What a chosen family can do.

        Raises:
            VoiceCloneError: the list is needed, and the server did not answer it.
        """
        return (await self._known()).get(family, Family())

    def most_characters(self, name: str | None) -> int | None:
        """Of a piece of text that a chosen family speaks well at once, as far as it is known; `name` as of `choose`."""
        return self._families.get(self._find(name) or "", Family()).max_characters

    async def designer(self) -> str:
        """The family that makes voices of descriptions.

        Raises:
            Unsupported: there is none.
            VoiceCloneError: the list is needed, and the server did not answer it.
        """
        return designer(await self._known())

    async def _known(self) -> dict[str, Family]:
        """The families by name, of the latest list."""
        if self._listed is None:
            await self._refresh()
            if self._listed is None and self._error is not None:
                raise _copy(self._error)
        return self._families

    def following(self) -> list[str]:
        """The families that follow instructions, as far as they are known."""
        return [name for name, family in self._families.items() if family.instructions_option is not None]

    async def names(self) -> dict[str, str]:
        """All names that a request can give, each with its family: families, the default first, then aliases.

        Raises:
            VoiceCloneError: the server did not answer its list, and no default is configured.
        """
        await self._refresh()
        names = self._names()
        if not names and self._error is not None:
            raise _copy(self._error)
        return names

    def _names(self) -> dict[str, str]:
        """As `names`, from what is known now. Without a list, configured families count as present."""
        families = [*([self._default] if self._default else []), *(self._listed or [])]
        names = {family: family for family in families}
        for alias, target in self._aliases:
            family = target or next(iter(families), None)
            if family is not None and (self._listed is None or family in families):
                names.setdefault(alias, family)
        return names

    def _find(self, name: str | None) -> str | None:
        if name is None:
            return self._default or next(iter(self._listed or []), None)
        names = self._names()
        if name not in names and TASKS.get(name):  # a kind of speech
            return next((family for family in self._listed or [] if family.endswith(TASKS[name])), None)
        return names.get(name)

    async def _refresh(self) -> None:
        """Wait for a list that is at most `REFRESH_SECONDS` old, or for the failure of the call."""
        self._start_call()
        if self._call is not None:
            await asyncio.wait((self._call,))  # a request that is cancelled leaves the call to the others

    def _start_call(self) -> None:
        """Ask the server, unless it is away, a call runs, or the latest one is too recent."""
        if self._away():
            self._error = ConnectionFailed("the speech server is idle")
        elif self._call is None and self._clock() >= self._next_call:
            self._call = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        try:
            self._families = await asyncio.wait_for(self._client.families(), CALL_SECONDS)
            listed = list(self._families)
        except asyncio.TimeoutError:
            self._error = DeadlineExceeded("the speech server did not answer in time")
        except VoiceCloneError as error:
            self._error = error
        except Exception:
            log.exception("the list of model families cannot be read")
            self._error = Internal("the list of model families cannot be read")
        else:
            self._error = None
            if listed != self._listed:
                log.info("the speech server has the model families %s", ", ".join(listed) or "(none)")
                if self._default and self._default not in listed:
                    log.warning("%s, the family of --model, is none of them", self._default)
            self._listed = listed
        finally:
            self._next_call = self._clock() + (REFRESH_SECONDS if self._error is None else RETRY_SECONDS)
            self._call = None


def unknown_model(name: str, known: Iterable[str]) -> HTTPFailure:
    """The answer to a request for a model that is not there."""
    message = f"there is no model {name!r}; this gateway has {', '.join(known) or 'none'}"
    do = "leave model out for the first of them, or start the gateway with --model-aliases"
    return HTTPFailure(404, f"{message}; {do} {shlex.quote(name)}", "model_not_found", param="model")


def _copy(error: VoiceCloneError) -> VoiceCloneError:
    return type(error)(str(error))
