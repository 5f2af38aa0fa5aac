"""What a caller is told when the database fails."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

import psycopg
from psycopg import errors

from voice_clone.errors import Internal, Overloaded

CLOSED = "the voice store is closed; the server is stopping"

AGAIN = 60.0  # seconds after which the same line is logged again: a database that is away is asked all the time

log = logging.getLogger(__name__)
_logged: dict[str, float] = {}  # lines, and when they were


class Unreachable(Overloaded):
    """The database does not answer, or not in time; or it is not the one that takes changes."""


class Full(Overloaded):
    """The disk of the database is full."""


@contextlib.contextmanager
def database_errors() -> Iterator[None]:
    """Turn errors of the database into errors for the caller, without its name or its data."""
    try:
        yield
    except errors.DiskFull:
        _log(logging.ERROR, "the voice store is full", None)
        raise Full("the voice store is full; free space in the database, then try again") from None
    except (
        psycopg.OperationalError,
        psycopg.InterfaceError,
        errors.ReadOnlySqlTransaction,
        errors.IdleInTransactionSessionTimeout,
    ) as error:
        _log(logging.WARNING, f"the voice store does not answer: {str(error).strip().partition(chr(10))[0]}", None)
        raise Unreachable("the voice store cannot be reached; nothing was changed, try again later") from None
    except psycopg.Error as error:
        _log(logging.ERROR, f"the voice store refused a statement: {type(error).__name__}", error)
        raise Internal("the voice store failed to handle the request; nothing was changed") from None


def _log(level: int, line: str, error: Exception | None) -> None:
    """Log a line, unless it was logged a moment ago."""
    now = time.monotonic()
    if now - _logged.get(line, -AGAIN) >= AGAIN:
        if len(_logged) > 100:
            _logged.clear()
        _logged[line] = now
        log.log(level, "%s", line, exc_info=error)
